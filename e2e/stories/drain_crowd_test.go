package stories

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// A zone goes: 2,000 pods on 100 nodes at once, of ten Deployments that allow a surge
// of a quarter and have a budget of a quarter. Every pod has all its grace, none is
// evicted twice, and nothing is left released.
func TestTwoThousandPodsOnAHundredNodesAtOnce(t *testing.T) {
	s := tell(t, controlplane.Options{Audit: true, Heartbeat: time.Minute})
	const nodes, perNode, services = 100, 20, 10
	doomed := s.bare("node", nodes, 2) // 2 CPUs: room for twenty each
	for i := range services {
		spec := controlplane.DeploymentSpec{Name: fmt.Sprint("web-", i), Replicas: nodes * perNode / services}
		quick(&spec)
		zero := time.Duration(0)
		spec.ReadyAfter, spec.StopAfter = &zero, &zero
		spec.Labels = map[string]string{"crowd": "yes"}
		quarter := percent(25)
		spec.MaxSurge, spec.MaxUnavailable, spec.BudgetMaxUnavailable = quarter, quarter, quarter
		_, err := s.cluster.RunDeployment(s.ctx, spec)
		s.must(err)
	}
	before, err := s.cluster.WaitPods(s.ctx, "default", "crowd", allReady(nodes*perNode))
	s.must(err)
	s.bare("spare", nodes/4, 8)
	d, queue := s.drill()

	sent := time.Now()
	on := map[string]int{}
	for _, p := range before {
		on[p.Spec.NodeName]++
	}
	for _, n := range doomed {
		interrupt(queue, n.Name, 120*time.Second)
	}
	total := 0
	var last time.Time
	for _, n := range doomed {
		rec := s.waitRecord(n.Name, func(r interruption.Record) bool { return r.Phase == interruption.Released })
		if rec.Pods == nil || rec.Pods.Graceful != on[n.Name] || rec.Pods.Total != on[n.Name] {
			t.Errorf("record of %s: %s, want all %d pods graceful", n.Name, rec, on[n.Name])
			continue
		}
		total += rec.Pods.Total
		if rec.Ended.After(last) {
			last = *rec.Ended
		}
	}
	t.Logf("%d pods on %d nodes had left %s after the notices", total, nodes, last.Sub(sent).Round(100*time.Millisecond))
	s.wantEachOnce(uids(before))
	s.wantNoneReleased()
	if n := s.metric(d, `spot_handler_pods_total{outcome="graceful"}`); n != nodes*perNode {
		t.Errorf("%v pods counted as graceful, want %d", n, nodes*perNode)
	}
	_, err = s.cluster.WaitPods(s.ctx, "default", "crowd", allReady(nodes*perNode))
	s.must(err)
}

func allReady(n int) func([]*corev1.Pod) bool {
	return func(pods []*corev1.Pod) bool {
		ready := 0
		for _, p := range pods {
			if controlplane.Ready(p) {
				ready++
			}
		}
		return ready == n && len(pods) == n
	}
}
