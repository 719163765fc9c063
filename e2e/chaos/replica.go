package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"spot-handler/e2e/chaos/evidence"
	"spot-handler/e2e/chaos/link"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
)

// restartAfter is how long the kubelet takes to start a process again that has ended by
// itself.
const restartAfter = time.Second

// killedBySignal is the exit code of a process that has none.
const killedBySignal = -1

// replica is one of the pods: a process that is started again whenever it ends, and its links.
type replica struct {
	number     int
	api, queue *link.Link
	options    daemon.Options

	requests atomic.Int64 // on the link to the API server
	starts   atomic.Int64 // of the process

	mu         sync.Mutex
	process    *daemon.Daemon
	started    time.Time      // when the process was
	asked      bool           // the process was told to end
	killed     *daemon.Daemon // the process that was last, and not in order
	after      time.Duration  // how long it stays away then
	stopped    int            // by how many it is paused
	unexpected []string
}

// newReplica opens a replica's links. Its process starts with run.
func newReplica(number int, dir, token string, cluster *controlplane.Cluster, sqs string, o daemon.Options) (*replica, error) {
	config := cluster.RESTConfig()
	trust, err := rest.TLSConfigFor(&rest.Config{TLSClientConfig: config.TLSClientConfig})
	if err != nil {
		return nil, fmt.Errorf("read the certificate of the API server: %w", err)
	}
	if trust == nil {
		trust = &tls.Config{}
	}
	r := &replica{number: number}
	// Each request says in the audit log which process has made it, and when it came here.
	stamp := func(q *http.Request) {
		q.Header.Set("Audit-ID", evidence.AuditID(r.number, int(r.starts.Load()), time.Now(), int(r.requests.Add(1))))
	}
	if r.api, err = link.New(link.Options{To: config.Host, TLS: trust, Stamp: stamp}); err != nil {
		return nil, err
	}
	if r.queue, err = link.New(link.Options{To: sqs}); err != nil {
		r.api.Close()
		return nil, err
	}
	kubeconfig, err := writeKubeconfig(dir, number, token, r.api.URL, r.api.CA())
	if err != nil {
		r.close()
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, fmt.Sprintf("replica-%d.log", number)))
	if err != nil {
		r.close()
		return nil, fmt.Errorf("write a replica's log: %w", err)
	}
	o.Args, o.Kubeconfig, o.SQS, o.Log = append(o.Args, "--log-level=debug"), kubeconfig, r.queue.URL, log
	r.options = o
	return r, nil
}

func (r *replica) close() {
	r.api.Close()
	r.queue.Close()
}

// run is the kubelet, until ctx ends.
func (r *replica) run(ctx context.Context) error {
	for {
		r.starts.Add(1)
		process, err := daemon.Start(r.options)
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.process, r.started, r.asked, r.after = process, time.Now(), false, restartAfter
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			process.Kill()
			return nil
		case <-process.Done():
		}
		r.mu.Lock()
		after := r.after
		if !r.asked && !lostLease(process) {
			r.unexpected = append(r.unexpected, fmt.Sprintf("replica %d ended with code %d: %s", r.number, process.ExitCode(), lastWords(process)))
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(after):
		}
	}
}

// lostLease: the process gave up its lease, which is what it has to do when it cannot renew it.
func lostLease(d *daemon.Daemon) bool {
	return d.ExitCode() == 1 && strings.Contains(lastWords(d), "lost the leader lease")
}

func lastWords(d *daemon.Daemon) string {
	var words []string
	lines := d.Lines("")
	for _, line := range lines[max(0, len(lines)-20):] {
		if line["level"] == nil || line["level"] == "error" { // what is not of the log is a panic, or the reason of the end
			words = append(words, fmt.Sprint(line.Message(), " ", line["error"]))
		}
	}
	return strings.Join(words, "; ")
}

// kill has the process gone for so long: at once, or in order. How a process stops in order is
// held against it, unless another fault kills it, before or meanwhile, or it has not come as far
// as to handle the signal, and with that to its first line.
func (r *replica) kill(after time.Duration, inOrder bool) {
	r.mu.Lock()
	process := r.process
	r.asked, r.after = true, after
	if !inOrder {
		r.killed = process
	}
	r.mu.Unlock()
	if process == nil {
		return
	}
	if !inOrder {
		process.Kill()
		return
	}
	r.signal(syscall.SIGCONT) // who sleeps cannot stop in order
	if code := process.Stop(); code != 0 && code != 1 {
		r.mu.Lock()
		defer r.mu.Unlock()
		if code == killedBySignal && (r.killed == process || len(process.Lines("")) == 0) {
			return
		}
		r.unexpected = append(r.unexpected, fmt.Sprintf("replica %d was stopped in order and ended with code %d: %s", r.number, code, lastWords(process)))
	}
}

// pause stops the process where it stands, until the returned function is called.
func (r *replica) pause() (resume func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped++
	r.signalLocked(syscall.SIGSTOP)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.stopped--; r.stopped == 0 {
			r.signalLocked(syscall.SIGCONT)
		}
	}
}

func (r *replica) signal(s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.signalLocked(s)
}

func (r *replica) signalLocked(s syscall.Signal) {
	if r.process == nil {
		return
	}
	select {
	case <-r.process.Done():
	default:
		_ = syscall.Kill(r.process.Pid(), s)
	}
}

// current is the present process, or the one that has ended last; nil before the first.
func (r *replica) current() *daemon.Daemon {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process
}

// since is when the present process was started, which takes a moment to know all Nodes.
func (r *replica) since() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.started.Add(evidence.Syncs)
}

// metrics are what the process says of itself; empty if it does not.
func (r *replica) metrics(ctx context.Context) string {
	process := r.current()
	if process == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return process.Metrics(ctx)
}

// leads: the process says that it has the lease.
func (r *replica) leads(ctx context.Context) bool {
	return strings.Contains(r.metrics(ctx), "\nspot_handler_leader 1\n")
}

// ready: the process says that it is.
func (r *replica) ready(ctx context.Context) bool {
	process := r.current()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return process != nil && process.WaitReady(ctx) == nil
}

// takeUnexpected returns how the process has ended against expectations, once.
func (r *replica) takeUnexpected() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	unexpected := r.unexpected
	r.unexpected = nil
	return unexpected
}
