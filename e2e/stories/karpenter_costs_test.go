package stories

import (
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/internal/assets"
)

// Karpenter 1.15 can write on pods how cheap it is to end them, for ReplicaSets that have too many. Pods of an
// interrupted node are the cheapest of all. That harms no surge: a surged pod has no ReplicaSet, so nobody ends
// it before its replacement pod is Ready, and the service never lacks a pod.
func TestSurgeBesideDeletionCosts(t *testing.T) {
	if os.Getenv(assets.KarpenterVariable) != "1.15" {
		t.Skip("only Karpenter 1.15 has this feature gate")
	}
	s := newStoryApart(long(t), controlplane.Options{Karpenter: true, Gates: "PodDeletionCostManagement=true"})
	// Only pools that are consolidated are ranked; nothing is within the hour.
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{
			Name: "batch", Weight: 100, CPUs: 16, ConsolidateAfter: "1h",
			Annotations: map[string]string{"spot-handler/fallback-nodepool": "batch-fallback"},
		},
		controlplane.PoolSpec{
			Name: "batch-fallback", CPUs: 16, ConsolidateAfter: "1h", Boot: 8 * time.Second, Capacity: []string{controlplane.OnDemand},
		}))
	node := s.node("batch")
	const replicas = 6
	s.service("web", replicas, func(d *controlplane.DeploymentSpec) {
		d.BudgetMaxUnavailable, d.MaxSurge = budget(1), budget(2) // in three turns
		d.MinReadySeconds = 10
	})
	withCost := func() (count int) {
		for _, p := range s.podsOn(node.Name, "web") {
			if p.Annotations[corev1.PodDeletionCost] != "" {
				count++
			}
		}
		return count
	}
	s.within("a cost on every pod", 3*time.Minute, func() bool { return withCost() == replicas }, func() string { return "" })
	server, queue := s.sqs()
	d := s.runQueue(server, queue)
	fewest := s.watchReady("web")
	interrupt(queue, node.Name, 2*time.Minute)
	drained := s.waitLine(d, "drained")
	s.waitGone(node.Name)
	if n := fewest(); n < replicas {
		t.Errorf("only %d pods were ready at some time, want never less than %d", n, replicas)
	}
	if drained["graceful"] != float64(replicas) {
		t.Errorf("not all %d pods left gracefully: %v", replicas, drained)
	}
	pods, err := s.cluster.WaitReady(s.ctx, "default", "web", replicas)
	s.must(err)
	for _, p := range pods {
		if p.Labels[plan.SurgedLabel] != "" {
			t.Errorf("pod %s is surged and still there", p.Name)
		}
	}
}
