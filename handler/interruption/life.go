package interruption

import (
	"encoding/json"
	"slices"
	"time"
)

// comesBack reports whether the same instance runs again after what was announced: after a
// reboot, maintenance, a stop or hibernation.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/interruption-behavior.html
func (a Announcement) comesBack() bool {
	switch a.Kind {
	case ScheduledEvent:
		return a.Action == ActionReboot || a.Action == ActionMaintenance || a.Action == ActionStop
	case SpotInterruption, CapacityReservationInterruption:
		return a.Action == ActionStop || a.Action == ActionHibernate
	case StateChange:
		return a.Action == ActionStopping || a.Action == ActionStopped
	}
	return false
}

// sleeps reports whether the instance may wake up as it was, with the same boot id: that is so
// when it hibernates. Hibernation begins at once, and its states are those of a stop.
func (a Announcement) sleeps() bool {
	return a.comesBack() && (a.Action == ActionHibernate || a.Kind == StateChange)
}

// asleep is the least time that a sleeping instance is away: the control plane misses its
// kubelet after 40 or 50 s, and EC2 needs as long for the memory. A Node that becomes Ready
// sooner was only starting, or its network was away for a moment.
const asleep = time.Minute

// ComesBack reports whether the instance runs again after all that was announced. If so, its
// Node is kept for it. A recommendation alongside does not count: it announces no end.
func (r Record) ComesBack() bool {
	list := slices.DeleteFunc(r.Announcements(), func(a Announcement) bool { return a.Kind == RebalanceRecommendation })
	return len(list) > 0 && !slices.ContainsFunc(list, func(a Announcement) bool { return !a.comesBack() })
}

// Returned reports whether the instance runs again after what was announced: its Node has
// another boot id or, if the instance slept, became Ready late enough for the instance to have
// woken up. ready is zero if the Node is not Ready.
func (r Record) Returned(boot string, ready time.Time) bool {
	if !r.ComesBack() {
		return false
	}
	return r.Boot != "" && boot != "" && boot != r.Boot ||
		slices.ContainsFunc(r.Announcements(), func(a Announcement) bool { return a.sleeps() && ready.After(a.Noticed.Add(asleep)) })
}

// Ends reports whether somebody has been asked to end the instance, so that it is too late to cancel. Karpenter
// deletes the Node of a NodeClaim that was deleted. A detached instance was terminated if EC2 need not do that
// itself, as after a rehearsal of whatever kind. All other released nodes are left to EC2.
func (r Record) Ends(deleting bool) bool {
	detached := r.Replacement != nil && r.Replacement.Detached
	return r.Phase == Released && (deleting || detached && (!r.Kind.Certain() || r.Rehearsed()))
}

// supersedes reports whether the notice is about a later life of the node than the record is:
// the record is over, and EC2 made the announcement after the time at which it was to act. An
// instance that is due back stays in the same life until it has come back.
func (n Notice) supersedes(r Record) bool {
	return r.Phase.Over() && n.after(r) && !(r.ComesBack() && r.Boot != "")
}

// ofNextRun reports whether the notice is about a run that the instance began after what the
// record is about. [Record.Returned] decides that from boot and ready.
func (n Notice) ofNextRun(r Record, boot string, ready time.Time) bool {
	return n.after(r) && r.Returned(boot, ready)
}

// after reports whether EC2 made the announcement after the time at which it was to act. A
// state of the instance is EC2 acting, so it does not count. Nor does an announcement that the
// record already holds: for some, nobody knows when they were made, and a new process takes
// them for new.
func (n Notice) after(r Record) bool {
	return n.Kind != StateChange && !r.Deadline.IsZero() && n.Noticed.After(r.Deadline) &&
		!slices.ContainsFunc(r.Announcements(), func(a Announcement) bool { return a.Event == n.EventID })
}

// Terminated reports whether EC2 has said that the instance is gone for good.
func (r Record) Terminated() bool {
	return r.Kind == StateChange && r.Action == ActionTerminated
}

// LastReceived is when we received the newest announcement that stands.
func (r Record) LastReceived() time.Time {
	last := r.Received
	for _, a := range r.Announced {
		last = Later(last, a.Received)
	}
	return last
}

// Since is when we received the newest announcement that stands or, if the record had to wait
// for its time or could only be written late, when that time came. The drain begins then, not earlier.
func (r Record) Since() time.Time { return Later(r.LastReceived(), r.Begun) }

// TurnTaken reports whether a node that was recommended for rebalance has had its turn come.
func (r Record) TurnTaken() bool {
	return !r.Begun.IsZero() || r.Phase == Replacing || r.Phase == Draining
}

// OnlyCordoned reports whether a recommended node is cordoned and, as its pool's policy has it, not drained.
func (r Record) OnlyCordoned() bool {
	return r.Kind == RebalanceRecommendation && r.Phase == Noticed && !r.TurnTaken()
}

// PassedOver reports whether a recommended node has had its turn, and stays in service. It isn't in line until it is
// tried again, in a minute.
func (r Record) PassedOver() bool {
	return r.Kind == RebalanceRecommendation && r.Phase == Waiting && !r.TurnTaken() && r.Replacement != nil
}

// Undone is the record as if nothing had been done yet, except for what is set on the Node.
func (r Record) Undone() Record {
	r.Replacement, r.Pods, r.Ended, r.Begun, r.Boot = nil, nil, time.Time{}, time.Time{}, ""
	return r
}

const (
	// lastCall is how long before the deadline the drain ends: the result is written and the
	// node released while the node, and in imds mode this process, still runs. An eviction that
	// late would give a pod a second or two.
	lastCall = 5 * time.Second

	// emergency is how long we move pods after a notice that came late or that left no time at
	// all, such as hibernation. Pods get a grace period of one second. Whatever EC2 leaves of
	// these seconds is better than nothing.
	emergency = 20 * time.Second
)

// DrainEnd is when the drain ends at the latest; zero means never.
func (r Record) DrainEnd() time.Time {
	if r.Deadline.IsZero() {
		return time.Time{}
	}
	return Later(r.Deadline.Add(-lastCall), r.dueSince().Add(emergency))
}

// dueSince is when the deadline became known or the drain began, whichever is later. A later announcement that doesn't
// change the deadline is no new emergency.
func (r Record) dueSince() time.Time {
	if i := slices.IndexFunc(r.Announced, func(a Announcement) bool { return a.Deadline.Equal(r.Deadline) }); i >= 0 {
		return Later(r.Announced[i].Received, r.Begun)
	}
	return r.Since()
}

// DrainEndFrom is DrainEnd for a drain that has begun at began, by the clock of who drains; zero is not known.
// That can be long after the notice was received, as it could not be recorded or nobody led: pods have the
// time of an emergency then. It can be before, by the clock of the node that received it.
func (r Record) DrainEndFrom(began time.Time) time.Time {
	if r.Deadline.IsZero() || began.IsZero() {
		return r.DrainEnd()
	}
	return Later(r.Deadline.Add(-lastCall), began.Add(emergency))
}

// Past lists announcements that no longer stand, newest last: scheduled events, which are
// announced again and again, and whatever somebody has cancelled.
type Past []Announcement

// PastOf is what to remember of a record that is undone.
func PastOf(r Record) Past { return Past(r.Past).withScheduled(r.Announcements()) }

// PastOfCanceled is what to remember of a record that somebody has cancelled at now. None of it must
// begin again because a queue delivers twice, or because the metadata service still shows it to
// a process that has restarted. What EC2 had announced by then under another id is part of it.
func PastOfCanceled(r Record, now time.Time) Past {
	off := r.Announcements()
	for i := range off {
		off[i].Off = now.UTC()
	}
	return Past(r.Past).And(off)
}

// DropRecommendation is what stands without the recommendation, which is past from now on as if
// it had been cancelled. stands is false if nothing else does; the record then only remembers
// that.
func (r Record) DropRecommendation(now time.Time) (rest Record, stands bool) {
	d := r.drop(func(a Announcement) bool { return a.Kind == RebalanceRecommendation })
	for i := range d.gone {
		d.gone[i].Off = now.UTC()
	}
	d.rest.Past = Past(d.rest.Past).And(d.gone)
	return d.rest, d.stands
}

// ParsePast reads the text of a PastAnnotation, as much of it as is ever written. Text that cannot
// be read counts as empty.
func ParsePast(text string) Past {
	var p Past
	if len(text) > maxRecord || json.Unmarshal([]byte(text), &p) != nil {
		return nil
	}
	p = slices.DeleteFunc(p, func(a Announcement) bool { return a.bounded() != nil })
	return p[max(0, len(p)-maxPast):]
}

// Has reports whether the notice repeats one of them.
func (p Past) Has(n Notice) bool {
	return slices.ContainsFunc(p, func(a Announcement) bool { return a.repeats(n) })
}

// And returns the two combined.
func (p Past) And(more Past) Past {
	p = slices.Clone(p)
	for _, a := range more {
		known := slices.ContainsFunc(p, func(b Announcement) bool { return a.Kind == b.Kind && a.Event == b.Event })
		if a.Source != Rehearsal && !known { // what EC2 says is news, whatever was rehearsed
			p = append(p, a)
		}
	}
	return p[max(0, len(p)-maxPast):]
}

func (p Past) withScheduled(list []Announcement) Past {
	return p.And(slices.DeleteFunc(slices.Clone(list), func(a Announcement) bool { return a.Kind != ScheduledEvent }))
}

// String is the annotation's text.
func (p Past) String() string {
	b, _ := json.Marshal(p) // texts, and times that were read from JSON
	return string(b)
}

// RebalancePolicy says what is done on a rebalance recommendation.
type RebalancePolicy string

const (
	RebalanceIgnore   RebalancePolicy = "ignore"   // nothing
	RebalanceCordon   RebalancePolicy = "cordon"   // record and cordon, no drain
	RebalanceReplace  RebalancePolicy = "replace"  // drain once a replacement is ready, if possible another spot instance
	RebalanceFallback RebalancePolicy = "fallback" // as replace, but with the replacement that an interruption notice would get
)

// RebalancePolicies lists every policy.
func RebalancePolicies() []RebalancePolicy {
	return []RebalancePolicy{RebalanceIgnore, RebalanceCordon, RebalanceReplace, RebalanceFallback}
}

// Replaces reports whether the node is replaced and drained.
func (p RebalancePolicy) Replaces() bool { return p == RebalanceReplace || p == RebalanceFallback }

// UnknownHookTimeout is how long a group is taken to wait at a lifecycle hook whose own timeout
// cannot be read. AWS's default is an hour; operators who set a hook up for drains take minutes, and
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

// waits reports whether a record is only written for now: the node is not cordoned before its
// time, or its turn, comes.
func (r Rules) waits(rec Record, now time.Time) bool {
	if r.Due(rec, now) {
		return false
	}
	switch rec.Kind {
	case ScheduledEvent:
		return true
	case RebalanceRecommendation:
		return rec.Returns() || r.Rebalance.Replaces()
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
	if a.Deadline.IsZero() {
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
	return rec.Deadline
}

// NotYet is what still stands in a record whose instance has come back: the scheduled events
// whose time has not come. stands is false if there are none.
func (r Rules) NotYet(rec Record, now time.Time) (rest Record, stands bool) {
	d := rec.drop(func(a Announcement) bool {
		return a.Kind != ScheduledEvent || !now.Before(r.startOf(a))
	})
	d.rest.Phase = Waiting
	return d.rest, d.stands
}

// waitsAgain reports whether the node was drained for a scheduled event and what stands now is
// not due: that event was withdrawn, or put off.
func (r Rules) waitsAgain(before, after Record, now time.Time) bool {
	return before.Phase != Released && r.Due(before, now) && !r.Due(after, now) && !after.Kind.Certain()
}
