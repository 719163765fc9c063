package plan

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// Blow is what happens to the nodes.
type Blow struct {
	Kind interruption.Kind
	// Deadline is the time from the notice, or from the start of the drain where that waits for its
	// time; nil takes what is usual for the kind.
	Deadline *time.Duration
	// Over is the time over which the notices are spread.
	Over time.Duration
	// ScheduledLead is the daemon's setting.
	ScheduledLead time.Duration
	// Release: it deletes the NodeClaims of nodes that Karpenter has made when their drains end.
	Release bool
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
		usual = interruption.UnknownHookTimeout
	}
	if b.Deadline != nil {
		usual = *b.Deadline
	}
	return &usual
}

// Underway has the nodes be lost that are interrupted already and drained now. Each has the time that
// its record leaves, and the replacement that the record names: one that is still to come is taken
// for a node of the same kind.
func Underway(in *Input, asked []*corev1.Node) {
	for _, n := range in.Nodes {
		rec, has, err := nodes.Record(n)
		if !has || err != nil || rec.Phase == interruption.Waiting || rec.Phase.Over() || slices.ContainsFunc(asked, func(a *corev1.Node) bool { return a.Name == n.Name }) {
			continue
		}
		l := Lost{Node: n, Kind: rec.Kind, Underway: true, After: rec.Since().Sub(in.At), Capacity: drain.NoCapacity}
		if rec.Deadline != nil {
			left := rec.Deadline.Sub(rec.Since())
			l.Deadline = &left
		}
		switch r := rec.Replacement; {
		case r != nil && r.State == provisioner.StateReady:
			l.Capacity = drain.ReadyCapacity
		case r == nil, r.State == provisioner.StateRequested, r.State == provisioner.StateLaunched:
			l.Capacity, l.Becomes = drain.PendingCapacity, Alike(n, "")
		}
		in.Lost = append(in.Lost, l)
	}
}

// Lose has the nodes be lost one after the other, by their names.
func Lose(in *Input, lost []*corev1.Node, b Blow) {
	lost = slices.SortedFunc(slices.Values(lost), func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	for i, n := range lost {
		after := b.Over * time.Duration(i) / time.Duration(max(1, len(lost)-1))
		in.Lost = append(in.Lost, Lost{Node: n, Kind: b.Kind, Deadline: b.deadline(), After: after, Deleted: b.Release && n.Labels["karpenter.sh/nodepool"] != ""})
	}
}
