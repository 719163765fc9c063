package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/sqsemu"
)

const (
	manyNodes  = 5000
	manyBurst  = 500
	manyImages = 50 // as many as a kubelet reports
	manyGoal   = 90.0
)

// BenchmarkMemoryManyNodes measures the resident memory of the Deployment in a cluster of
// 5,000 Nodes of real size: at its start, and at the peak of a burst. Once as an API server
// of today gives it the Nodes, one by one, and once as one does that cannot.
func BenchmarkMemoryManyNodes(b *testing.B) {
	for b.Loop() {
		measureManyNodes(b)
	}
}

func measureManyNodes(b *testing.B) {
	ctx, cancel := context.WithTimeoutCause(b.Context(), 2*memoryTimeout, fmt.Errorf("not within %s", 2*memoryTimeout))
	defer cancel()
	cluster := controlplane.ForTest(b, controlplane.Options{Heartbeat: heartbeat})
	client, err := rawClient(cluster)
	must(b, err)
	nodes, err := cluster.CreateBareNodes(ctx, controlplane.BareNodes{Count: manyNodes, Images: manyImages, Unmanaged: true})
	must(b, err)
	sqs := sqsemu.Start()
	defer sqs.Close()

	for i, how := range []struct{ name, variable string }{
		{"nodes streamed", "KUBE_FEATURE_WatchListClient=true"}, {"nodes listed", "KUBE_FEATURE_WatchListClient=false"},
	} {
		queue := sqs.Queue(fmt.Sprint("spot-handler-", i))
		d := start(b, daemon.Options{
			Args: []string{"queue", "--queue-url=" + queue.URL()}, Kubeconfig: cluster.Kubeconfig, SQS: sqs.URL, Env: []string{how.variable},
		})
		resident := watchMemory(d)
		must(b, d.WaitReady(ctx))
		waitLine(b, ctx, d, "leading")
		_, started := resident.look()
		pause(b, ctx, idleTime)
		idle, _ := resident.look()

		watch, err := watchCordons(ctx, client)
		must(b, err)
		began := time.Now()
		for _, node := range nodes[i*manyBurst : (i+1)*manyBurst] {
			queue.Send(daemon.EventBridge(daemon.SpotInterruption, eventID(node.Name), controlplane.InstanceID(node.Name), time.Now()))
		}
		alive, stopped := untilDead(ctx, d)
		_, err = watch.waitCordoned(alive, manyBurst)
		must(b, err)
		cordoned := time.Since(began).Seconds()
		must(b, watch.waitReleased(alive, manyBurst))
		must(b, queue.WaitEmpty(alive))
		_, peak := resident.look()
		stopped()
		if code := d.Stop(); code != 0 {
			b.Errorf("the daemon ended with code %d", code)
		}

		what := fmt.Sprintf("queue mode, %d nodes, %s: ", manyNodes, how.name)
		reportMemory(what+"memory, peak of the start", manyGoal, 0, started)
		reportMemory(what+"memory, idle", manyGoal, 0, idle)
		reportMemory(fmt.Sprintf("%smemory, peak of a burst of %d", what, manyBurst), manyGoal, 0, peak)
		report(row{what: fmt.Sprintf("%s%d cordoned", what, manyBurst), unit: "s", values: []float64{cordoned}})
	}
}
