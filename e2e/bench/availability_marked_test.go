package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/e2e/imdsemu"
)

// BenchmarkAvailabilityMarked interrupts half of a pool at once in imds mode: a process on each node
// marks that node, and one drains them all.
func BenchmarkAvailabilityMarked(b *testing.B) {
	const nodes, lost = 40, 20
	for b.Loop() {
		s := service{
			B: b, cluster: controlplane.ForTest(b, controlplane.Options{Karpenter: true}), name: "marked", pods: 7 * nodes, nodes: nodes,
			ready: readyTime, budget: intstr.FromString("25%"), grace: 30 * time.Second,
		}
		s.reportMarked(s.loseMarked(startDrain(b, s.cluster), lost), fmt.Sprintf("%d of %d nodes at once in imds mode", lost, nodes))
	}
}

// BenchmarkTurns interrupts half of a pool at once in imds mode. maxSurge is half of the pods that are
// lost, so the other half wait for their turn to be surged, and waves of a small budget would have to
// begin before it comes.
func BenchmarkTurns(b *testing.B) {
	for _, lost := range []int{2, 4, 10} {
		b.Run(fmt.Sprintf("%d-nodes", lost), func(b *testing.B) {
			for b.Loop() {
				cluster := controlplane.ForTest(b, controlplane.Options{Karpenter: true})
				d := startDrain(b, cluster)
				var group sync.WaitGroup
				budgets := []intstr.IntOrString{intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("25%")}
				results := make([]outage, len(budgets))
				services := make([]service, len(budgets))
				for i, budget := range budgets {
					services[i] = service{
						B: b, cluster: cluster, name: fmt.Sprintf("turns-%d", i), pods: 7 * 2 * lost, nodes: 2 * lost,
						ready: readyTime, budget: budget, grace: 30 * time.Second,
					}
					group.Go(func() { results[i] = services[i].loseMarked(d, lost) })
				}
				group.Wait()
				if b.Failed() {
					return
				}
				for i, s := range services {
					s.reportMarked(results[i], fmt.Sprintf("%d of %d nodes at once in imds mode, budget %s", lost, s.nodes, s.budget.String()))
				}
			}
		})
	}
}

// startDrain starts the daemon that drains what others mark.
func startDrain(b *testing.B, cluster *controlplane.Cluster) *daemon.Daemon {
	d := start(b, daemon.Options{Args: []string{"drain"}, Kubeconfig: cluster.Kubeconfig})
	must(b, d.WaitReady(b.Context()))
	return d
}

func (s service) reportMarked(r outage, what string) {
	report(row{what: "unavailable, " + what + ": surge", unit: "pod s", values: []float64{r.podSeconds}, none: true})
	report(row{what: fmt.Sprintf("  fewest ready of %d; not graceful; nodes made", s.pods), text: fmt.Sprintf("%d; %d; %d", r.fewest, r.rough, r.claims)})
	report(row{what: "  nodes empty after", unit: "s", values: []float64{r.drained}, goal: noticeTime.Seconds()})
}

// loseMarked interrupts many of the service's nodes at once, each by its metadata service, and has d
// drain them.
func (s service) loseMarked(d *daemon.Daemon, n int) outage {
	ctx, cancel := context.WithTimeout(s.Context(), 2*availableWait)
	defer cancel()
	nodes := s.setUp(ctx)[:n]
	var emulators []*imdsemu.Server
	for _, node := range nodes {
		emulator := imdsemu.Start(imdsemu.Options{InstanceID: controlplane.InstanceID(node.Name)})
		defer emulator.Close()
		emulators = append(emulators, emulator)
		marker := start(s.B, daemon.Options{
			Args: []string{"imds", "--drain=false", "--node-name=" + node.Name}, Kubeconfig: s.cluster.Kubeconfig, IMDS: emulator.URL,
		})
		must(s.B, marker.WaitReady(ctx))
		defer marker.Kill()
	}
	return s.follow(ctx, d, nodes, func(noticed time.Time) {
		for _, emulator := range emulators {
			emulator.Interrupt("terminate", noticed.Add(noticeTime))
		}
	})
}
