// Package bench measures what the manual promises, on a real control plane and with
// spot-handler as a process of its own: one file for each figure.
//
// Each figure stands beside the limit that this machine sets, measured in the same
// run, as its absolute value says more about the machine than about the program.
// Every benchmark repeats itself and gives the median of its rounds; it is meant to
// run once (-benchtime 1x). Other load distorts it: the table at the end tells what
// there was.
package bench

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
)

// Each figure is measured rounds times, or noisyRounds times if single rounds differ by a third
// or more.
const (
	rounds      = 3
	noisyRounds = 7
)

// settleTime lets the control plane end what the last step has set off, such as the
// node controllers' look at new nodes, before something is measured.
const settleTime = 3 * time.Second

func TestMain(m *testing.M) {
	os.Setenv("GOGC", "100") // the control plane's components as people run them
	before := loadAverage()
	code := m.Run()
	printTable(os.Stdout, before)
	os.Exit(code)
}

// startQueueMode starts a daemon in queue mode, with everything else at its default,
// and returns when it is ready and, where it is the only one, leads.
func startQueueMode(b *testing.B, ctx context.Context, kubeconfig string, sqs *sqsemu.Server, queue *sqsemu.Queue) *daemon.Daemon {
	b.Helper()
	d := start(b, daemon.Options{Args: []string{"queue", "--queue-url=" + queue.URL()}, Kubeconfig: kubeconfig, SQS: sqs.URL})
	must(b, d.WaitReady(ctx))
	return d
}

// untilDead returns a context that ends with the daemon, which must not end by itself.
func untilDead(ctx context.Context, d *daemon.Daemon) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-d.Done():
			text := ""
			if lines := d.Lines(""); len(lines) > 0 {
				text = lines[len(lines)-1].Message()
			}
			cancel(fmt.Errorf("the daemon ended with code %d: %s", d.ExitCode(), text))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

func start(b *testing.B, o daemon.Options) *daemon.Daemon {
	b.Helper()
	d, err := daemon.Start(o)
	must(b, err)
	b.Cleanup(d.Kill)
	return d
}

// waitLine waits until the daemon has logged the message.
func waitLine(b *testing.B, ctx context.Context, d *daemon.Daemon, message string) {
	b.Helper()
	for len(d.Lines(message)) == 0 {
		pause(b, ctx, 20*time.Millisecond)
	}
}

func pause(b *testing.B, ctx context.Context, d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		b.Fatal(context.Cause(ctx))
	}
}

// calm waits until the control plane has dealt with what was written, or removed after the last round,
// but not for ever.
func calm(b *testing.B, ctx context.Context, cluster *controlplane.Cluster) {
	b.Helper()
	const every, share, atMost = 5 * time.Second, 0.3, 75 * time.Second
	before := processorTime(cluster.Processes...)
	for began := time.Now(); time.Since(began) < atMost; {
		pause(b, ctx, every)
		now := processorTime(cluster.Processes...)
		if now-before < share*every.Seconds() {
			return
		}
		before = now
	}
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
