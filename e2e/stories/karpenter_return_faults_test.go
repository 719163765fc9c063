package stories

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner/karpenter"
)

// Three services go back to spot, and each is disturbed on its way: the leader dies, EC2 takes the new node, an
// operator cancels. The first goes back all the same, under the next leader. The pods of the others that have not
// moved stay on demand, and `status` says why. No service ever lacks a pod, and no node is bought twice.
func TestDisturbedOnTheWayBack(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true})
	const replicas, boot = 4, 12 * time.Second
	slowBoot := map[string]time.Duration{"cancels": time.Minute} // of the way back
	dies, taken, cancels := "dies", "taken", "cancels"
	pools := []string{dies, taken, cancels}
	ready, stop := 30*time.Second, 3*time.Second // long enough for all three disturbances
	lost, moves := map[string]string{}, map[string]*moving{}
	for _, pool := range pools {
		s.must(s.cluster.CreatePools(s.ctx,
			controlplane.PoolSpec{Name: pool, Weight: 100, Boot: cmp.Or(slowBoot[pool], boot), Labels: team(pool)},
			controlplane.PoolSpec{Name: pool + "-od", Boot: boot, Labels: team(pool), Capacity: []string{controlplane.OnDemand}}))
		lost[pool] = s.node(pool).Name
		s.service(pool, replicas, func(d *controlplane.DeploymentSpec) {
			d.CPU, d.NodeSelector = "500m", team(pool)
			d.ReadyAfter, d.StopAfter, d.Grace = &ready, &stop, 20*time.Second
			d.MaxSurge, d.BudgetMaxUnavailable = percent(100), percent(25)
		})
		moves[pool] = s.watchMoves(pool, replicas)
	}
	server, queue := s.sqs()
	leader := s.runReplica(server, queue, "--calm=90s")
	s.waitLine(leader, "leading")
	s.runReplica(server, queue, "--calm=90s")
	for _, pool := range pools {
		interrupt(queue, lost[pool], 2*time.Minute)
	}
	standIn := map[string]string{}
	for _, pool := range pools {
		s.waitGone(lost[pool])
		standIn[pool] = s.homeOf(pool, controlplane.OnDemand, replicas)
	}
	returns := func(pool string) bool {
		node, err := s.cluster.Client.CoreV1().Nodes().Get(s.ctx, standIn[pool], metav1.GetOptions{})
		if err != nil {
			return false
		}
		rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation])
		return err == nil && rec.Returns() && rec.Replacement != nil && rec.Replacement.Name != ""
	}
	for _, pool := range pools {
		s.within(pool+" is on its way back", 3*time.Minute, func() bool { return returns(pool) }, func() string { return "" })
	}
	s.eventually("a spot node for "+taken, func() bool { return len(s.nodesOf(taken)) > 0 })
	newNode := s.nodesOf(taken)[0]
	_, err := s.cluster.LabelInstance(s.ctx, newNode)
	s.must(err)
	interrupt(queue, newNode, 2*time.Minute)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"true"}}}`, interruption.CancelAnnotation)
	_, err = s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, standIn[cancels], types.MergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
	leader.Kill()

	s.within(dies+" back on spot", 5*time.Minute, func() bool { return len(s.nodesOf(dies+"-od")) == 0 }, func() string { return "" })
	s.waitGone(newNode)
	for pool, why := range map[string]string{cancels: "the last attempt to go back", taken: "the last attempt to go back"} {
		var held karpenter.Held
		s.within(pool+" is held again", 3*time.Minute, func() bool {
			node, err := s.cluster.Client.CoreV1().Nodes().Get(s.ctx, standIn[pool], metav1.GetOptions{})
			if err != nil {
				return false
			}
			held = karpenter.HeldOf(node)
			return strings.Contains(held.Why, why) && node.Annotations[interruption.Annotation] == "" && !node.Spec.Unschedulable
		}, func() string { return held.Why })
		if !slices.Contains(s.nodesOf(pool+"-od"), standIn[pool]) {
			t.Errorf("%s: its on-demand node has gone", pool)
		}
	}
	for _, pool := range pools {
		_, err := s.cluster.WaitReady(s.ctx, "default", pool, replicas)
		s.must(err)
		if _, missing := moves[pool].sum(); missing > 0 {
			t.Errorf("%s: %.1f unavailable pod-seconds, want none", pool, missing)
		}
	}
	if on := s.nodesOf(dies); len(on) != 1 {
		t.Errorf("%s is on %d spot nodes, want one", dies, len(on))
	}
}
