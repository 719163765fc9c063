package interruption

import (
	"encoding/json"
	"slices"
	"time"
)

// comesBack reports whether the instance runs again after what was announced, as the same
// instance: after a reboot, maintenance or a stop. One that hibernates is not counted: it
// wakes up with the boot id that it had, so that nothing tells of its return.
func (a Announcement) comesBack() bool {
	switch a.Kind {
	case ScheduledEvent:
		return a.Action == ActionReboot || a.Action == ActionMaintenance || a.Action == ActionStop
	case SpotInterruption, CapacityReservationInterruption:
		return a.Action == ActionStop
	case StateChange:
		return a.Action == ActionStopping || a.Action == ActionStopped
	}
	return false
}

// ComesBack reports whether the instance runs again after all that was announced. Then its
// Node is kept for it. A recommendation beside it does not count: it announces no end.
func (r Record) ComesBack() bool {
	list := slices.DeleteFunc(r.Announcements(), func(a Announcement) bool { return a.Kind == RebalanceRecommendation })
	return len(list) > 0 && !slices.ContainsFunc(list, func(a Announcement) bool { return !a.comesBack() })
}

// Returned reports whether a Node with that boot id is the instance's next run, after what
// was announced.
func (r Record) Returned(boot string) bool {
	return r.ComesBack() && r.Boot != "" && boot != "" && boot != r.Boot
}

// Terminated reports whether EC2 has said that the instance is gone for good.
func (r Record) Terminated() bool {
	return r.Kind == StateChange && r.Action == ActionTerminated
}

// Since is when the newest of what stands was heard of or, where the record had to wait
// for its time, when that had come: a drain begins then, and not before.
func (r Record) Since() time.Time {
	since := r.Received
	for _, a := range r.Announced {
		if a.Received.After(since) {
			since = a.Received
		}
	}
	if r.Begun != nil && r.Begun.After(since) {
		since = *r.Begun
	}
	return since
}

// Past are scheduled events that do not stand any more, the newest last.
type Past []Announcement

// maxPast bounds them. An instance has one or two scheduled events in its life.
const maxPast = 4

// PastOf is what is to be remembered of a record that is undone.
func PastOf(r Record) Past { return Past(r.Past).with(r.Announcements()) }

// ParsePast reads the text of a PastAnnotation. What cannot be read is nothing.
func ParsePast(text string) Past {
	var p Past
	if len(text) > maxRecord || json.Unmarshal([]byte(text), &p) != nil {
		return nil
	}
	return p
}

// Has reports whether the notice is about one of them.
func (p Past) Has(n Notice) bool {
	return n.Kind == ScheduledEvent && slices.ContainsFunc(p, func(a Announcement) bool { return a.same(n) })
}

// And returns the two together.
func (p Past) And(more Past) Past { return p.with(more) }

func (p Past) with(list []Announcement) Past {
	p = slices.Clone(p)
	for _, a := range list {
		if a.Kind == ScheduledEvent && !slices.ContainsFunc(p, func(b Announcement) bool { return a.Event == b.Event }) {
			p = append(p, a)
		}
	}
	return p[max(0, len(p)-maxPast):]
}

// String is the annotation's text.
func (p Past) String() string {
	b, err := json.Marshal(p)
	if err != nil { // cannot happen, as with a record
		return "[]"
	}
	return string(b)
}
