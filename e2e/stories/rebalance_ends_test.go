package stories

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// Nodes of two pools are recommended. One pool has another instance type: a spot node of that is
// launched, and only when it is Ready the node is cordoned. The other pool has nothing else, and
// its fallback does not exist: its nodes stay in service, each has had its turn, and each says
// why.
func TestOnlyANodeWithAReplacementIsCordoned(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	types := func(names ...any) func(*unstructured.Unstructured) {
		return func(pool *unstructured.Unstructured) {
			s.must(unstructured.SetNestedSlice(pool.Object, []any{
				map[string]any{"key": "karpenter.sh/capacity-type", "operator": "In", "values": []any{controlplane.Spot}},
				map[string]any{"key": corev1.LabelInstanceTypeStable, "operator": "In", "values": names},
				map[string]any{"key": corev1.LabelTopologyZone, "operator": "In", "values": []any{"test-zone-a"}},
			}, "spec", "template", "spec", "requirements"))
		}
	}
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "broad", Boot: 2 * time.Second, Change: types("s-8x-amd64-linux", "s-16x-amd64-linux"),
			Annotations: map[string]string{"spot-handler/fallback-nodepool": "on-demand"}},
		controlplane.PoolSpec{Name: "narrow", Change: types("s-8x-amd64-linux"),
			Annotations: map[string]string{"spot-handler/fallback-nodepool": "nowhere"}},
		controlplane.PoolSpec{Name: "on-demand", Capacity: []string{controlplane.OnDemand}},
	))
	broad := s.node("broad")
	narrow, err := s.cluster.CreateNodes(s.ctx, "narrow", 2)
	s.must(err)
	s.service("web", 3, func(d *controlplane.DeploymentSpec) { quick(d); d.Pool = "broad" })
	s.service("lonely", 4, func(d *controlplane.DeploymentSpec) { quick(d); d.Pool, d.Spread = "narrow", corev1.LabelHostname })
	fewest := s.watchReady("web")
	seen := s.watchRebalances()
	d, queue := s.drill("--max-concurrent-rebalances=1")
	for _, node := range append(narrow, broad) {
		queue.Send(daemon.EventBridge(daemon.Rebalance, "event-"+node.Name, controlplane.InstanceID(node.Name), time.Now()))
	}

	moved := s.waitRecord(broad.Name, func(r interruption.Record) bool { return r.Replacement != nil && r.Replacement.Name != "" })
	s.waitGone(broad.Name)
	claim := s.claim(moved.Replacement.Name).GetLabels()
	if kind := claim[corev1.LabelInstanceTypeStable]; claim["karpenter.sh/capacity-type"] != controlplane.Spot || kind == "" || kind == broad.Labels[corev1.LabelInstanceTypeStable] {
		t.Errorf("replaced %v by %v, want another spot instance", broad.Labels, claim)
	}
	if n := fewest(); n < 3 {
		t.Errorf("%d pods ready at the least, want 3 all the time", n)
	}
	for _, node := range narrow {
		rec := s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Replacement != nil })
		if rec.Phase != interruption.Waiting || !strings.Contains(rec.Replacement.Reason, "nowhere") {
			t.Errorf("record %s, want it to wait, and why", rec)
		}
		if len(s.events("ReplacementFailed", node.Name)) == 0 {
			t.Errorf("no Event says why node %s has no replacement", node.Name)
		}
	}
	if lines := d.Lines("no replacement, node stays in service"); len(lines) != 2 {
		t.Errorf("%d lines, want one for each node that stays: %v", len(lines), lines)
	}
	seen.want(s, 2, 3) // none of narrow's
}

// The replacement is Ready, and no pod leaves the node: one asks not to be disrupted, and the
// replacement pod of the other, which was surged, can run nowhere else. After the TTL the node is in
// service again, the surged pod is its ReplicaSet's, a replacement that no pod uses is returned, and
// the next in line has had its turn.
func TestDrainWithoutProgressIsUndone(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.pools(time.Second)
	first := s.node("batch")
	s.patchNode(first.Name, "", `{"metadata":{"labels":{"example.com/only":"here"}}}`)
	pinned := s.service("pinned", 1, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"}
	})[0]
	stuck := s.service("stuck", 1, func(d *controlplane.DeploymentSpec) {
		quick(d)
		d.NodeSelector = map[string]string{"example.com/only": "here"}
	})[0]
	second := s.node("batch")
	s.patchNode(first.Name, "", `{"spec":{"unschedulable":true}}`) // none of these comes there
	s.service("web", 1, quick)
	s.patchNode(first.Name, "", `{"spec":{"unschedulable":null}}`)
	d, queue := s.drill("--rebalance-ttl=20s", "--replacement-ttl=30s", "--max-concurrent-rebalances=1", "--rebalance=fallback")
	recommend := func(id string, node *corev1.Node) {
		queue.Send(daemon.EventBridge(daemon.Rebalance, id, controlplane.InstanceID(node.Name), time.Now()))
	}

	recommend("event-1", first)
	s.waitRecord(first.Name, func(r interruption.Record) bool { return r.Phase == interruption.Draining })
	recommend("event-2", second)
	undone, err := s.cluster.WaitNode(s.ctx, first.Name, func(n *corev1.Node) bool { _, has := record(n); return !has })
	s.must(err)
	if undone == nil || undone.Spec.Unschedulable || hasTaint(undone, interruption.TaintKey) {
		t.Fatalf("node %v, want it in service", undone)
	}
	for _, was := range []*corev1.Pod{pinned, stuck} {
		s.eventually("only pod of "+was.Name, func() bool {
			list, err := s.cluster.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{LabelSelector: controlplane.Selector(was.Labels["app"])})
			s.must(err)
			return len(list.Items) == 1 && list.Items[0].UID == was.UID && list.Items[0].DeletionTimestamp == nil &&
				metav1.GetControllerOf(&list.Items[0]) != nil && !isSurged(&list.Items[0])
		})
	}
	recommend("event-1", first) // delivered again
	s.waitGone(second.Name)
	// The pod of the second node may have moved to either.
	s.eventually("return of the replacement without a pod", func() bool { return len(s.claims("batch-fallback", "")) == 1 })
	s.waitEmpty(queue)
	if rec, has := record(s.lastSeen(first.Name)); has {
		t.Errorf("the recommendation has begun again: %s", rec)
	}
	if n := s.metric(d, `spot_handler_drains_total{kind="rebalance-recommendation",result="canceled"}`); n != 1 {
		t.Errorf("%v drains cancelled, want 1", n)
	}
}
