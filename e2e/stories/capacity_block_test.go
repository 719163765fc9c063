package stories

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
)

// A Capacity Block is about to end. The message names the reservation; its nodes are those that Karpenter or
// an operator has labelled. Both are drained without a dip, long before the time that the message says, and
// the nodes of another reservation, and of none, stay. A rolling budget takes nothing from ten minutes.
func TestCapacityBlockDrainsItsNodes(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	const ours, others = "cr-0123456789abcdef0", "cr-0fedcba9876543210"
	label := func(node *corev1.Node, name, reservation string) string {
		s.patchNode(node.Name, "", fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, name, reservation))
		return node.Name
	}
	block := s.bare("block", 2, 4)
	karpenters := label(block[0], "karpenter.k8s.aws/capacity-reservation-id", ours)
	labelled := label(block[1], interruption.ReservationLabel, ours)
	pods := s.service("web", 6, surge(2, func(d *controlplane.DeploymentSpec) { d.BudgetMinAvailable = budget(6) }))
	elsewhere := label(s.bare("elsewhere", 1, 8)[0], "karpenter.k8s.aws/capacity-reservation-id", others)
	fewest := s.watchReady("web")
	d, queue := s.drill()

	warned := time.Now().Truncate(time.Second)
	end := warned.Add(40 * time.Minute)
	warning := func(reservation, event string) string {
		return message("Capacity Block Expiration Warning", "aws.ec2", event, warned, map[string]any{
			"capacity-reservation-id": reservation, "end-date": end.UTC().Format(time.RFC3339),
		})
	}
	id := queue.Send(warning(ours, "event-block"))
	foreign := queue.Send(warning("cr-0aaaaaaaaaaaaaaaa", "event-foreign"))
	for _, node := range []string{karpenters, labelled} {
		rec := s.waitRecord(node, func(r interruption.Record) bool { return r.Phase.Over() })
		if rec.Kind != interruption.CapacityBlockExpiration || !rec.Deadline.Equal(end.Add(-30*time.Minute)) || rec.Instance != controlplane.InstanceID(node) {
			t.Errorf("record %s, want the deadline %s", rec, end.Add(-30*time.Minute))
		}
		if rec.Pods == nil || rec.Pods.Graceful != rec.Pods.Total || rec.Pods.Total == 0 {
			t.Errorf("record %s, want all pods graceful", rec)
		}
	}
	s.eventually("deletion of the message", func() bool { return queue.Deleted(id) })
	s.eventually("deletion of the message about another cluster's", func() bool { return queue.Deleted(foreign) })
	if n := fewest(); n < 6 {
		t.Errorf("%d pods ready at the least, want 6 all the time", n)
	}
	s.wantEachOnce(uids(pods))
	if n := s.lastSeen(elsewhere); n.Spec.Unschedulable || n.Annotations[interruption.Annotation] != "" {
		t.Errorf("node %s of another reservation is marked: %+v", elsewhere, n.Spec)
	}
	for series, want := range map[string]float64{
		`spot_handler_notices_total{kind="capacity-block-expiration",source="queue"}`:    2,
		`spot_handler_drains_total{kind="capacity-block-expiration",result="completed"}`: 2,
	} {
		if got := s.metric(d, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
}
