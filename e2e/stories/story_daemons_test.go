package stories

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
)

// imds starts an emulator that serves as the node's metadata service.
func (s *story) imds(node *corev1.Node) *imdsemu.Server {
	server := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(node.Name)})
	s.Cleanup(server.Close)
	return server
}

// sqs starts an emulator with one queue.
func (s *story) sqs() (*sqsemu.Server, *sqsemu.Queue) {
	s.Helper()
	server := sqsemu.Start()
	s.Cleanup(server.Close)
	queue := server.Queue("spot-handler")
	return server, queue
}

// run starts a daemon and waits until it is ready.
func (s *story) run(o daemon.Options) *daemon.Daemon {
	s.Helper()
	d := s.start(o)
	ctx, cancel := context.WithTimeout(s.ctx, 30*time.Second)
	defer cancel()
	s.must(d.WaitReady(ctx))
	return d
}

func (s *story) start(o daemon.Options) *daemon.Daemon {
	s.Helper()
	kubeconfig, more := s.identify(o.Args)
	o.Kubeconfig, o.Args, o.Log = kubeconfig, append(slices.Clone(o.Args), more...), s.Output()
	d, err := daemon.Start(o)
	s.must(err)
	s.Cleanup(d.Kill)
	return d
}

// alone is for the only daemon in queue mode, and for one that follows a killed one. Such a daemon
// does not wait for the lease, and does not restart because a stall of the machine cost it the lease.
const alone = "--leader-elect=false"

// runQueue starts the only daemon in queue mode.
func (s *story) runQueue(server *sqsemu.Server, queue *sqsemu.Queue, flags ...string) *daemon.Daemon {
	s.Helper()
	return s.runReplica(server, queue, append([]string{alone}, flags...)...)
}

// runReplica starts one of several daemons in queue mode, of which one leads.
func (s *story) runReplica(server *sqsemu.Server, queue *sqsemu.Queue, flags ...string) *daemon.Daemon {
	s.Helper()
	return s.run(daemon.Options{Args: append([]string{"queue", "--queue-url=" + queue.URL()}, flags...), SQS: server.URL})
}

// runDrain starts a daemon that drains what others mark.
func (s *story) runDrain(flags ...string) *daemon.Daemon {
	s.Helper()
	return s.run(daemon.Options{Args: append([]string{"drain", alone}, flags...)})
}

// runIMDS starts a daemon in imds mode for the node.
func (s *story) runIMDS(server *imdsemu.Server, node *corev1.Node, flags ...string) *daemon.Daemon {
	s.Helper()
	return s.run(daemon.Options{Args: append([]string{"imds", "--node-name=" + node.Name}, flags...), IMDS: server.URL})
}

// waitEmpty waits until every message was deleted.
func (s *story) waitEmpty(queue *sqsemu.Queue) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Minute)
	defer cancel()
	s.must(queue.WaitEmpty(ctx))
}

// waitLine waits until the daemon has logged the message, and returns the line.
func (s *story) waitLine(d *daemon.Daemon, message string) daemon.Line {
	s.Helper()
	var line daemon.Line
	s.eventually("log line "+message, func() bool {
		if lines := d.Lines(message); len(lines) > 0 {
			line = lines[0]
		}
		return line != nil
	})
	return line
}

// waitEnd waits until the daemon has ended by itself, and returns its exit code.
func (s *story) waitEnd(d *daemon.Daemon) int {
	s.Helper()
	s.eventually("end of the daemon", func() bool {
		select {
		case <-d.Done():
			return true
		default:
			return false
		}
	})
	return d.ExitCode()
}

// metric is the value of one series, such as `spot_handler_leader`, which must exist.
func (s *story) metric(d *daemon.Daemon, series string) (value float64) {
	s.Helper()
	for line := range strings.Lines(d.Metrics(s.ctx)) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			_, err := fmt.Sscan(rest, &value)
			s.must(err)
			return value
		}
	}
	s.Fatalf("no metric %s", series)
	return 0
}
