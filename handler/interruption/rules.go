package interruption

import "time"

// RebalancePolicy says what is done on a rebalance recommendation.
type RebalancePolicy string

const (
	RebalanceIgnore  RebalancePolicy = "ignore"  // nothing
	RebalanceCordon  RebalancePolicy = "cordon"  // record and cordon, no drain
	RebalanceReplace RebalancePolicy = "replace" // drain as soon as a replacement is ready
)

// RebalancePolicies lists every policy.
func RebalancePolicies() []RebalancePolicy {
	return []RebalancePolicy{RebalanceIgnore, RebalanceCordon, RebalanceReplace}
}

// UnknownHookTimeout is how long a group is taken to wait at a lifecycle hook whose own timeout
// cannot be read. AWS's default is an hour; whoever sets a hook up for drains takes minutes, and
// too short a wait only ends the drain early.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
const UnknownHookTimeout = 5 * time.Minute

// Rules are what the operator has decided for a node.
type Rules struct {
	// Rebalance is what is done on a rebalance recommendation.
	Rebalance RebalancePolicy
	// Unmanaged says why the node is not spot-handler's to touch; empty if it is.
	Unmanaged string
	// ScheduledLead is how long before the window of a scheduled event its drain begins.
	ScheduledLead time.Duration
}

// Waits reports whether a record is only written for now: the node is not cordoned before its
// time, or its turn, comes.
func (r Rules) Waits(rec Record, now time.Time) bool {
	if r.Due(rec, now) {
		return false
	}
	switch rec.Kind {
	case ScheduledEvent:
		return true
	case RebalanceRecommendation:
		return r.Rebalance == RebalanceReplace
	}
	return false
}

// Start is when the drain for the record's scheduled events begins: long enough before the
// first window for the pods to leave without haste. It is zero if there is no such event.
func (r Rules) Start(rec Record) (start time.Time) {
	for _, a := range rec.Announcements() {
		if at := r.startOf(a); a.Kind == ScheduledEvent && (start.IsZero() || at.Before(start)) {
			start = at
		}
	}
	return start
}

func (r Rules) startOf(a Announcement) time.Time {
	if a.Deadline == nil {
		return a.Received
	}
	return a.Deadline.Add(-r.ScheduledLead)
}

// Due reports whether the record has a scheduled event whose drain has to begin, or should have
// begun.
func (r Rules) Due(rec Record, now time.Time) bool {
	start := r.Start(rec)
	return !start.IsZero() && !now.Before(start)
}

// DrainBy is when the drain has to be done; zero if there is no hurry.
func (r Rules) DrainBy(rec Record, now time.Time) time.Time {
	if rec.Kind == RebalanceRecommendation && !r.Due(rec, now) {
		return time.Time{}
	}
	return rec.DeadlineTime()
}

// NotYet is what still stands in a record whose instance has come back: the scheduled events
// whose time has not come. stands is false if there are none.
func (r Rules) NotYet(rec Record, now time.Time) (rest Record, stands bool) {
	rest, _, stands = rec.Drop(func(a Announcement) bool {
		return a.Kind != ScheduledEvent || !now.Before(r.startOf(a))
	})
	rest.Phase = Waiting
	return rest, stands
}

// waitsAgain reports whether the node was drained for a scheduled event and what stands now is
// not due: that event was withdrawn, or put off.
func (r Rules) waitsAgain(before, after Record, now time.Time) bool {
	return before.Phase != Released && r.Due(before, now) && !r.Due(after, now) && !after.Kind.Certain()
}
