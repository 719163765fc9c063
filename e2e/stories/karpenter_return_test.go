package stories

import (
	"math"
	"testing"
	"time"

	"spot-handler/e2e/controlplane"
)

// A quarter of a service's pods lose their spot node: they go to an on-demand one and, after calm, back to
// spot, each time surged. Nobody misses a pod, whatever Karpenter's consolidation of the on-demand pool would
// do: one pool's moves pods at once, the other has none.
func TestThereAndBackWithoutADip(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true})
	const nodes, onEach, boot = 4, 7, 40 * time.Second
	const replicas = nodes * onEach
	ready, stop := 10*time.Second, 10*time.Second
	lost, moves := map[string]string{}, map[string]*moving{}
	after := map[string]string{"eager": "0s", "lasting": "Never"} // consolidateAfter of the on-demand pool
	for name, consolidate := range after {
		s.must(s.cluster.CreatePools(s.ctx,
			controlplane.PoolSpec{Name: name, Weight: 100, Boot: boot, Labels: team(name)},
			controlplane.PoolSpec{Name: name + "-od", Boot: boot, Labels: team(name), Capacity: []string{controlplane.OnDemand}, ConsolidateAfter: consolidate}))
		for range nodes {
			lost[name] = s.node(name).Name
		}
		s.service(name, replicas, func(d *controlplane.DeploymentSpec) {
			d.CPU, d.NodeSelector = "1100m", team(name)
			d.ReadyAfter, d.StopAfter, d.Grace = &ready, &stop, 30*time.Second
			d.MaxSurge, d.BudgetMaxUnavailable = percent(25), percent(25)
		})
		if on := len(s.podsOn(lost[name], name)); on != onEach {
			t.Fatalf("%d pods of %s on its node, want %d", on, name, onEach)
		}
		moves[name] = s.watchMoves(name, replicas)
	}
	server, queue := s.sqs()
	s.runQueue(server, queue, "--calm=40s")
	for name := range after {
		interrupt(queue, lost[name], 2*time.Minute)
	}
	began := time.Now()
	for name := range after {
		s.waitGone(lost[name])
		s.eventually(name+" on demand", func() bool { return len(s.nodesOf(name+"-od")) > 0 })
	}
	t.Logf("there after %.0f s", time.Since(began).Seconds())
	for name := range after {
		s.within(name+" back on spot", 10*time.Minute, func() bool { return len(s.nodesOf(name+"-od")) == 0 }, func() string { return "" })
		_, err := s.cluster.WaitReady(s.ctx, "default", name, replicas)
		s.must(err)
	}
	took := time.Since(began)
	for name := range after {
		perPod, missing := moves[name].sum()
		moved := int(math.Round(perPod * replicas))
		t.Logf("%s: %d moves of %d pods, and %.1f unavailable pod-seconds in %.0f s", name, moved, onEach, missing, took.Seconds())
		if moved != 2*onEach || missing > 0 {
			t.Errorf("%s: %d moves and %.1f unavailable pod-seconds, want %d and none", name, moved, missing, 2*onEach)
		}
		if on := s.nodesOf(name); len(on) != nodes {
			t.Errorf("%s: %d spot nodes, want %d", name, len(on), nodes)
		}
	}
}
