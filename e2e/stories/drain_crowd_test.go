package stories

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// A zone goes: 1,000 pods on 50 nodes at once, under ten budgets. Every pod has all its
// grace, and each is evicted once. Their replacement pods are left out: it is the drain that is
// at stake. The nodes have five minutes, so it is not the machine's speed; how long twice as
// many take is measured by the benchmark of evictions.
func TestAThousandPodsOnFiftyNodesAtOnce(t *testing.T) {
	s := newLargeStory(t, controlplane.Options{Audit: true, Heartbeat: time.Minute})
	const nodes, perNode, left = 50, 20, 5 * time.Minute
	var stop context.CancelFunc
	s.ctx, stop = context.WithTimeoutCause(s.ctx, 2*left, fmt.Errorf("not within %s", 2*left))
	defer stop()
	interrupted := s.bare("node", nodes, 8)
	zero := time.Duration(0)
	pods, err := s.cluster.CreateCrowd(s.ctx, controlplane.Crowd{
		Name: "crowd", PerNode: perNode, Budgets: 10, Behaviour: controlplane.Behaviour{ReadyAfter: &zero, StopAfter: &zero},
	}, interrupted)
	s.must(err)
	d, queue := s.drill()

	sent := time.Now()
	want := map[string]int{}
	for _, n := range interrupted {
		interrupt(queue, n.Name, left)
		want[n.Name] = perNode
	}
	last := s.wantAllGraceful(want)
	t.Logf("%d pods on %d nodes had left %s after the notices", len(pods), nodes, last.Sub(sent).Round(100*time.Millisecond))
	s.wantEachOnce(uids(pods))
	if n := s.metric(d, `spot_handler_pods_total{kind="spot-interruption",outcome="graceful"}`); n != nodes*perNode {
		t.Errorf("%v pods counted as graceful, want %d", n, nodes*perNode)
	}
}

// Ten nodes go at once, with 120 pods of four Deployments that allow a surge of a quarter
// and have a budget of a tenth. None of them loses one ready pod. Here, too, the nodes have five
// minutes: on two busy processors, the controllers alone have taken more than two.
func TestManyNodesSurgeAtOnce(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	const nodes, services, replicas = 10, 4, 30
	interrupted := s.bare("node", nodes, 2) // room for 20 each
	want, evictable := map[string]int{}, map[types.UID]string{}
	seen := map[string]*worstSeen{}
	for i := range services {
		name := fmt.Sprint("web-", i)
		for _, p := range s.service(name, replicas, func(d *controlplane.DeploymentSpec) {
			quick(d)
			d.CPU, d.MaxSurge, d.MaxUnavailable, d.BudgetMaxUnavailable = "100m", percent(25), never, percent(10)
		}) {
			want[p.Spec.NodeName]++
			evictable[p.UID] = p.Name
		}
	}
	s.bare("spare", 4, 8)
	_, queue := s.drill()
	for i := range services {
		seen[fmt.Sprint("web-", i)] = s.watchSurge("default", fmt.Sprint("web-", i))
	}
	for _, n := range interrupted {
		interrupt(queue, n.Name, 5*time.Minute)
	}
	s.wantAllGraceful(want)
	s.wantEachOnce(evictable)
	s.wantNoneSurged()
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		s.wantPods("default", name, replicas)
		surged, ready := seen[name].worst()
		if allowed := 8; surged > allowed { // a quarter, rounded up
			t.Errorf("%d pods of %s were surged at once, want up to %d", surged, name, allowed)
		}
		if ready < replicas {
			t.Errorf("%s had only %d ready pods at some moment, want never less than %d", name, ready, replicas)
		}
	}
}

// wantAllGraceful waits until the nodes are released, checks that so many pods of each
// have had their grace and that no other was there, and returns the end of the last.
func (s *story) wantAllGraceful(want map[string]int) (last time.Time) {
	s.Helper()
	for _, node := range slices.Sorted(maps.Keys(want)) {
		n := want[node]
		rec := s.waitRecord(node, func(r interruption.Record) bool { return r.Phase == interruption.Released })
		if rec.Pods == nil || rec.Pods.Graceful != n || rec.Pods.Total != n {
			s.Errorf("record of %s: %s, want all %d pods graceful", node, rec, n)
		}
		if rec.Ended.After(last) {
			last = rec.Ended
		}
	}
	return last
}
