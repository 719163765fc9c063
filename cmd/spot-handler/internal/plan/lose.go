package plan

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
	"spot-handler/drain/forecast"
	"spot-handler/handler/interruption"
)

// Blow is what happens to the nodes.
type Blow struct {
	Kind interruption.Kind
	// Deadline is the time from the notice, or from the start of the drain where that waits for its
	// time; nil takes what is usual for the kind.
	Deadline *time.Duration
	// Over is the time over which the notices are spread.
	Over time.Duration
	// ScheduledLead and HookTimeout are the daemon's settings.
	ScheduledLead, HookTimeout time.Duration
}

// notice is what EC2 leaves after a spot notice.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
const notice = 2 * time.Minute

// deadline is nil if there is none.
func (b Blow) deadline() *time.Duration {
	usual := time.Duration(0)
	switch b.Kind {
	case interruption.RebalanceRecommendation:
		return b.Deadline
	case interruption.SpotInterruption, interruption.CapacityReservationInterruption:
		usual = notice
	case interruption.ScheduledEvent:
		usual = b.ScheduledLead
	case interruption.InstanceTerminating:
		usual = b.HookTimeout
	}
	if b.Deadline != nil {
		usual = *b.Deadline
	}
	return &usual
}

// Lose has the nodes be lost one after the other, by their names, each replaced by one like it
// where replacing.
func Lose(in *forecast.Input, lost []*corev1.Node, b Blow, replaces func(*corev1.Node) bool) {
	lost = slices.SortedFunc(slices.Values(lost), func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for i, n := range lost {
		l := forecast.Lost{Node: n, Kind: b.Kind, Deadline: b.deadline(), After: b.Over * time.Duration(i) / time.Duration(max(1, len(lost)-1))}
		if replaces(n) {
			l.Capacity, l.Becomes = drain.PendingCapacity, like(n)
			l.Replacement = &forecast.Replacement{InstanceType: n.Labels[corev1.LabelInstanceTypeStable]}
		}
		in.Lost = append(in.Lost, l)
	}
}

// like is a new node of the same kind.
func like(n *corev1.Node) *corev1.Node {
	c := n.DeepCopy()
	c.Name = "in-place-of-" + n.Name
	c.Labels[corev1.LabelHostname] = c.Name
	c.Spec.Taints = slices.DeleteFunc(c.Spec.Taints, func(t corev1.Taint) bool { return t.Key == interruption.TaintKey })
	c.Spec.Unschedulable = false
	return c
}
