package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"spot-handler/e2e/controlplane/internal/supervisor"
	"spot-handler/e2e/internal/assets"
)

// stopTimeout is how long the supervisor may take to kill its processes and remove its
// directory, on a machine that is busy with other tests.
const stopTimeout = 20 * time.Second

// Options say what runs, and how.
type Options struct {
	// Karpenter runs Karpenter and installs its CRDs.
	Karpenter bool

	// Audit makes the apiserver log every request, see Cluster.AuditLog.
	Audit bool

	// NoEndpoints leaves out the controllers that write the addresses of Services.
	NoEndpoints bool

	// Dir is the directory that keeps the components' logs after the end. By default they
	// are in a temporary one.
	Dir string

	// Heartbeat is how often nodes renew their lease; 10 s by default, as kubelets do.
	// The control plane notices a stopped node after five of them. A longer one is
	// cheaper for thousands of nodes.
	Heartbeat time.Duration

	// Reusable lets Reset empty the cluster.
	Reusable bool

	// Log receives what is being built, and why a component died; os.Stderr by default.
	Log io.Writer
}

// Cluster is a running control plane.
type Cluster struct {
	// Kubeconfig is the path of an administrator's kubeconfig, Kubectl that of the newest
	// kubectl.
	Kubeconfig, Kubectl string

	// Dir holds <component>.log of each component, for as long as the cluster runs.
	Dir string

	// AuditLog is the path of the audit log, with one JSON object of kind Event
	// (audit.k8s.io/v1) on each line; empty without Options.Audit. It holds all requests
	// except those of kwok, those about nodes' leases, and those about Events, unless
	// service accounts in the namespace spot-handler make them. Evictions and deletions
	// of pods come with their bodies. user.username is the component, or admin for the
	// holders of Kubeconfig; userAgent distinguishes those. A line is written before its
	// request is answered.
	AuditLog string

	// KarpenterMetrics is the URL of Karpenter's metrics; empty without Karpenter.
	KarpenterMetrics string

	// Processes are the ids of the components' processes, to measure them.
	Processes []int

	// Client and Dynamic have an administrator's rights and no client-side rate limit.
	Client  kubernetes.Interface
	Dynamic dynamic.Interface

	config *rest.Config

	auditLog  string // AuditLog, also for a borrower that did not ask for it
	auditFrom int64  // where its part begins

	bareNodes atomic.Int64 // that were ever created

	supervisor *exec.Cmd
	stdin      io.WriteCloser
	info       chan []byte // lines of the supervisor
	stderr     *lastOutput
	exited     chan struct{} // closed when waitErr is set
	waitErr    error
	stopping   sync.Once
}

// Start starts a control plane, and returns when all of it is ready. The context limits
// only the start. The caller must Stop it eventually; if the caller dies first, the
// cluster still ends.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Log == nil {
		options.Log = os.Stderr
	}
	if options.Heartbeat == 0 {
		options.Heartbeat = 10 * time.Second
	}
	path, err := assets.Supervisor(ctx)
	if err != nil {
		return nil, err
	}
	checkout, err := assets.Checkout()
	if err != nil {
		return nil, err
	}
	c := &Cluster{stderr: &lastOutput{next: options.Log}, info: make(chan []byte, 1), exited: make(chan struct{})}
	c.supervisor = exec.Command(path,
		fmt.Sprintf("-karpenter=%t", options.Karpenter),
		fmt.Sprintf("-audit=%t", options.Audit),
		fmt.Sprintf("-endpoints=%t", !options.NoEndpoints),
		"-heartbeat="+options.Heartbeat.String(),
	)
	if options.Reusable {
		c.supervisor.Args = append(c.supervisor.Args, "-reusable")
	}
	if options.Dir != "" {
		c.supervisor.Args = append(c.supervisor.Args, "-dir="+options.Dir)
	}
	c.supervisor.Dir = checkout
	c.supervisor.Env = append(os.Environ(), "PWD="+checkout)
	c.supervisor.Stderr = c.stderr
	// A Ctrl-C at the terminal is for the test, whose end then ends the supervisor.
	c.supervisor.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.stdin, err = c.supervisor.StdinPipe(); err != nil {
		return nil, fmt.Errorf("make a pipe to the supervisor: %w", err)
	}
	stdout, err := c.supervisor.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe from the supervisor: %w", err)
	}
	if err := c.supervisor.Start(); err != nil {
		return nil, fmt.Errorf("start the supervisor: %w", err)
	}
	go c.read(stdout)
	info, err := c.awaitInfo(ctx)
	if err == nil {
		err = c.connect(info)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// read hands on what the supervisor says until it ends.
func (c *Cluster) read(stdout io.Reader) {
	defer close(c.exited)
	defer close(c.info)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		c.info <- bytes.Clone(lines.Bytes())
	}
	if c.supervisor != nil { // not a kept cluster, which goes on
		// Only after the last read: Wait closes the pipe.
		c.waitErr = c.supervisor.Wait()
	}
}

// awaitInfo waits for the line that says that all is ready.
func (c *Cluster) awaitInfo(ctx context.Context) (info supervisor.Info, err error) {
	select {
	case <-ctx.Done():
		return info, fmt.Errorf("start a control plane: %w", context.Cause(ctx))
	case text := <-c.info:
		if err := json.Unmarshal(text, &info); err != nil {
			return info, errors.New("start a control plane: the supervisor ended before it was ready")
		}
		return info, nil
	}
}

// Reset deletes all objects that were not there when the cluster was started, starts
// Karpenter again, and returns when all is ready. AuditText starts empty again. The cluster must
// be Reusable, and must be stopped after an error.
func (c *Cluster) Reset(ctx context.Context) error {
	if _, err := io.WriteString(c.stdin, "reset\n"); err != nil {
		return fmt.Errorf("reset the control plane: %w", err)
	}
	info, err := c.awaitInfo(ctx)
	if err != nil {
		return fmt.Errorf("reset the control plane: %w", err)
	}
	c.Processes = info.Components
	if file, err := os.Stat(c.auditLog); err == nil {
		c.auditFrom = file.Size()
	}
	return nil
}

// AuditText is what the audit log has of this cluster since its start, or since it was
// Reset, without so many bytes that the caller knows: complete lines.
func (c *Cluster) AuditText(known int64) ([]byte, error) {
	file, err := os.Open(c.AuditLog)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer file.Close()
	if _, err := file.Seek(c.auditFrom+known, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return text[:bytes.LastIndexByte(text, '\n')+1], nil
}

func (c *Cluster) connect(info supervisor.Info) error {
	c.Kubeconfig, c.Kubectl, c.Dir = info.Kubeconfig, info.Kubectl, info.Dir
	c.AuditLog, c.KarpenterMetrics, c.Processes = info.AuditLog, info.KarpenterMetrics, info.Components
	c.auditLog = info.AuditLog
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit: we measure the server and the program under test
	c.config = config
	// Protobuf, for the built-in types only, spares the processors, which the control
	// plane shares with what we measure.
	if c.Client, err = kubernetes.NewForConfig(protobuf(config)); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("make a dynamic client: %w", err)
	}
	return nil
}

func protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}

// RESTConfig is for the caller's own clients: an administrator's rights, no client-side
// rate limit. Each call returns a new one.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Done is closed when the cluster has ended, either by Stop or because a component died.
func (c *Cluster) Done() <-chan struct{} { return c.exited }

// Stop ends the cluster and waits until nothing is left of it. It returns an error if the
// cluster had ended by itself, or did not end cleanly. Later calls do nothing more.
func (c *Cluster) Stop() error {
	c.stopping.Do(func() { c.stdin.Close() })
	select {
	case <-c.exited:
	case <-time.After(stopTimeout):
		// The kernel then kills the components; the next start removes the directory.
		_ = c.supervisor.Process.Kill()
		<-c.exited
		return fmt.Errorf("stop the control plane: not within %s", stopTimeout)
	}
	if c.waitErr != nil {
		return fmt.Errorf("run the control plane: %w\n%s", c.waitErr, c.stderr.last())
	}
	return nil
}

// lastOutput passes on what the supervisor says, and remembers the end of it.
type lastOutput struct {
	next io.Writer

	mu   sync.Mutex
	text []byte
}

func (o *lastOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	o.text = append(o.text, p...)
	o.text = o.text[max(0, len(o.text)-8<<10):]
	o.mu.Unlock()
	// A log that cannot be written to must not end the supervisor.
	_, _ = o.next.Write(p)
	return len(p), nil
}

func (o *lastOutput) last() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.TrimSpace(o.text)
}
