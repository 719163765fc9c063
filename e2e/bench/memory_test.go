package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
	"spot-handler/e2e/sqsemu"
)

const (
	// idleTime is how long daemons do nothing but poll before they are measured.
	idleTime = 30 * time.Second

	// idleNodes is how many Nodes there are meanwhile.
	idleNodes = 500

	memoryTimeout = 5 * time.Minute
)

// BenchmarkMemoryIdle measures the resident memory of daemons that have nothing to
// do: of the DaemonSet, which pays it on every node, and of the Deployment. The rounds
// of both run side by side: they hardly run at all. The first in queue mode leads.
func BenchmarkMemoryIdle(b *testing.B) {
	for b.Loop() {
		measureIdle(b)
	}
}

func measureIdle(b *testing.B) {
	ctx, cancel := context.WithTimeoutCause(b.Context(), memoryTimeout, fmt.Errorf("not within %s", memoryTimeout))
	defer cancel()
	cluster := controlplane.ForTest(b, controlplane.Options{Heartbeat: heartbeat})
	nodes, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: idleNodes, Unmanaged: true})
	must(b, err)
	sqs := sqsemu.Start(sqsemu.Options{})
	defer sqs.Close()
	queue := sqs.Queue("spot-handler")

	var imds, queues []*daemon.Daemon
	for i := range rounds {
		metadata := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(nodes[i].Name)})
		defer metadata.Close()
		d := start(b, daemon.Options{
			Args: []string{"imds", "--node-name=" + nodes[i].Name}, Kubeconfig: cluster.Kubeconfig, IMDS: metadata.URL,
		})
		must(b, d.WaitReady(ctx))
		imds = append(imds, d)
		queues = append(queues, startQueueMode(b, ctx, cluster.Kubeconfig, sqs, queue))
		if i == 0 {
			waitLine(b, ctx, queues[0], "leading")
		}
	}
	pause(b, ctx, idleTime)

	measure := func(what, unit string, goal float64, daemons []*daemon.Daemon) {
		now := row{what: what, unit: "MiB", goal: goal}
		for _, d := range daemons {
			mib, _ := resident(d)
			now.values = append(now.values, mib)
		}
		report(now)
		b.ReportMetric(median(now.values), unit)
	}
	b.ReportMetric(0, "ns/op") // of all that this took: says nothing
	measure(fmt.Sprintf("imds mode: memory after %s of polling", idleTime), "MiB-imds", 25, imds)
	measure(fmt.Sprintf("queue mode: memory after %s, %d nodes", idleTime, idleNodes), "MiB-queue", 0, queues)
	for _, d := range append(imds, queues...) {
		if code := d.Stop(); code != 0 {
			b.Errorf("a daemon ended with code %d", code)
		}
	}
}
