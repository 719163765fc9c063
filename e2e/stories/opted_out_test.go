package stories

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/e2e/daemon"
	"spot-handler/handler/interruption"
)

// A Node is opted out by its label, or by a selector that does not select it: nothing is
// written on it and its message is deleted, in queue mode and by the daemon on the node
// itself. What was recorded before the label goes on.
func TestNodesThatAreOptedOut(t *testing.T) {
	s := newStory(t, controlplane.Options{})
	nodes := s.bare("node", 4, 8)
	label := func(n *corev1.Node, labels string) {
		_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, n.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{`+labels+`}}}`), metav1.PatchOptions{})
		s.must(err)
	}
	labelled, unselected, selected, begun := nodes[0], nodes[1], nodes[2], nodes[3]
	label(labelled, `"team":"blue","spot-handler/ignore":"true"`)
	label(selected, `"team":"blue"`)
	label(begun, `"team":"blue"`)
	server, queue := s.sqs()
	d := s.runQueue(server, queue, "--managed-nodes=team=blue")
	send := func(n *corev1.Node, kind, id string) {
		queue.Send(daemon.EventBridge(kind, id+n.Name, controlplane.InstanceID(n.Name), time.Now()))
	}
	send(begun, daemon.Rebalance, "risk-")
	s.waitRecord(begun.Name, func(interruption.Record) bool { return true })
	label(begun, `"spot-handler/ignore":"true"`)
	for _, n := range nodes {
		send(n, daemon.SpotInterruption, "notice-")
	}
	s.waitRecord(selected.Name, func(r interruption.Record) bool { return r.Kind == interruption.SpotInterruption })
	s.waitRecord(begun.Name, func(r interruption.Record) bool { return r.Kind == interruption.SpotInterruption })
	s.waitEmpty(queue)
	s.eventually("count of unmanaged", func() bool { return s.metric(d, `spot_handler_messages_total{outcome="unmanaged"}`) == 2 })

	imds := s.imds(labelled)
	imds.Interrupt("terminate", time.Now().Add(2*time.Minute))
	if line := s.waitLine(s.runIMDS(imds, labelled, "--log-level=debug"), "notice settled"); line["verdict"] != "unmanaged" {
		t.Errorf("on the node itself: %v, want unmanaged", line)
	}
	for _, n := range []*corev1.Node{labelled, unselected} {
		if now := s.lastSeen(n.Name); now.Spec.Unschedulable || now.Annotations[interruption.Annotation] != "" {
			t.Errorf("node %s, which is opted out, was touched: %v", n.Name, now.Annotations)
		}
	}
}

// With --cordon-only the node of an interruption is marked and its message deleted; no pod
// is moved, and nothing is requested. It can be cancelled. The Event names the interruption
// in annotations, too.
func TestCordonOnly(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true, Audit: true})
	s.pools(time.Second)
	node := s.node("batch")
	pods := s.service("web", 3, nil)
	server, queue := s.sqs()
	s.runQueue(server, queue, "--cordon-only")
	instance := controlplane.InstanceID(node.Name)

	at := time.Now().Truncate(time.Second)
	queue.Send(daemon.EventBridge(daemon.SpotInterruption, "event-1", instance, at))
	s.waitRecord(node.Name, func(r interruption.Record) bool { return r.Phase == interruption.Noticed })
	s.waitEmpty(queue)
	if now := s.lastSeen(node.Name); !now.Spec.Unschedulable || !hasTaint(now, interruption.TaintKey) {
		t.Errorf("unschedulable %v, taints %v", now.Spec.Unschedulable, now.Spec.Taints)
	}

	var events []corev1.Event
	s.eventually("the Event", func() bool { events = s.events("SpotInterruption", node.Name); return len(events) > 0 })
	want := map[string]string{
		"spot-handler/kind": "spot-interruption", "spot-handler/source": "queue", "spot-handler/action": "terminate", "spot-handler/event-id": "event-1",
		"spot-handler/deadline": at.Add(2 * time.Minute).UTC().Format(time.RFC3339), "spot-handler/instance-id": instance,
		"spot-handler/instance-type": node.Labels[corev1.LabelInstanceTypeStable], "spot-handler/availability-zone": node.Labels[corev1.LabelTopologyZone],
	}
	if diff := cmp.Diff(want, events[0].Annotations); diff != "" {
		t.Errorf("annotations of the Event (-want +got):\n%s", diff)
	}

	_, err := s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node.Name, "application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"spot-handler/cancel":"true"}}}`), metav1.PatchOptions{})
	s.must(err)
	_, err = s.cluster.WaitNode(s.ctx, node.Name, func(n *corev1.Node) bool {
		return n != nil && !n.Spec.Unschedulable && !hasTaint(n, interruption.TaintKey) && n.Annotations[interruption.Annotation] == ""
	})
	s.must(err)
	if n := len(s.evictions()); n != 0 {
		t.Errorf("%d pods evicted", n)
	}
	if claims := s.claims("batch-fallback", ""); len(claims) != 0 {
		t.Errorf("claims %v, want none", claims)
	}
	if on := s.podsOn(node.Name, "web"); len(on) != len(pods) {
		t.Errorf("%d pods on the node, want %d", len(on), len(pods))
	}
}
