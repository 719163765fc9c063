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

	// memoryBurst is how many Nodes there are meanwhile, and how many notices come then.
	memoryBurst = 500

	memoryTimeout = 5 * time.Minute
)

// The goals, in MiB. They are of all that is resident, and nothing is done to have pages
// counted elsewhere.
const (
	idleGoal          = 36.0 // imds mode
	idleGoalAnonymous = 12.0
	burstGoal         = 70.0 // queue mode
)

// BenchmarkMemory measures the resident memory of daemons in both modes: of the DaemonSet,
// which pays it on every node, and of the Deployment. First they have nothing to do, then
// all nodes are interrupted, and both are notified of those that the DaemonSet runs on. The
// rounds of both run side by side: they hardly run at all before. The first in queue mode
// leads.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		measureMemory(b)
	}
}

func measureMemory(b *testing.B) {
	ctx, cancel := context.WithTimeoutCause(b.Context(), memoryTimeout, fmt.Errorf("not within %s", memoryTimeout))
	defer cancel()
	cluster := controlplane.ForTest(b, controlplane.Options{Heartbeat: heartbeat})
	client, err := rawClient(cluster)
	must(b, err)
	nodes, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: memoryBurst, Unmanaged: true})
	must(b, err)
	sqs := sqsemu.Start()
	defer sqs.Close()
	queue := sqs.Queue("spot-handler")

	var daemons []*daemon.Daemon
	var instances []*imdsemu.Server
	var imds, queues []*residence
	for i := range rounds {
		metadata := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(nodes[i].Name)})
		defer metadata.Close()
		instances = append(instances, metadata)
		d := start(b, daemon.Options{
			Args: []string{"imds", "--node-name=" + nodes[i].Name}, Kubeconfig: cluster.Kubeconfig, IMDS: metadata.URL,
		})
		must(b, d.WaitReady(ctx))
		imds = append(imds, watchMemory(d))
		q := startQueueMode(b, ctx, cluster.Kubeconfig, sqs, queue)
		queues = append(queues, watchMemory(q))
		if i == 0 {
			waitLine(b, ctx, q, "leading")
		}
		daemons = append(daemons, q, d)
	}
	pause(b, ctx, idleTime)
	b.ReportMetric(0, "ns/op") // of all that this took: says nothing
	idleIMDS, _ := lookAt(imds)
	idleQueue, _ := lookAt(queues)
	reportMemory(fmt.Sprintf("imds mode: memory after %s of polling", idleTime), idleGoal, idleGoalAnonymous, idleIMDS...)
	reportMemory(fmt.Sprintf("queue mode: memory after %s, %d nodes", idleTime, memoryBurst), 0, 0, idleQueue...)

	watch, err := watchCordons(ctx, client)
	must(b, err)
	alive, stopped := untilDead(ctx, daemons[0])
	defer stopped()
	at := time.Now()
	for _, node := range nodes {
		queue.Send(daemon.EventBridge(daemon.SpotInterruption, eventID(node.Name), controlplane.InstanceID(node.Name), at))
	}
	for _, instance := range instances {
		instance.Interrupt("terminate", at.Add(noticeTime))
	}
	_, err = watch.waitCordoned(alive, memoryBurst)
	must(b, err)
	must(b, watch.waitReleased(alive, memoryBurst))
	must(b, queue.WaitEmpty(alive))
	_, peakIMDS := lookAt(imds)
	_, peakQueue := lookAt(queues[:1])
	reportMemory(fmt.Sprintf("imds mode: memory, peak with a notice among %d", memoryBurst), 0, 0, peakIMDS...)
	reportMemory(fmt.Sprintf("queue mode: memory, peak of a burst of %d", memoryBurst), burstGoal, 0, peakQueue...)
	for _, d := range daemons {
		if code := d.Stop(); code != 0 {
			b.Errorf("a daemon ended with code %d", code)
		}
	}
}
