package interruption

import (
	"slices"
	"time"
)

// Announcement is one thing that EC2 has said of an instance and that still stands.
type Announcement struct {
	Kind     Kind       `json:"kind"`
	Event    string     `json:"event"`
	Source   Source     `json:"source"`
	Action   string     `json:"action,omitempty"`
	Noticed  time.Time  `json:"noticed"`
	Received time.Time  `json:"received"`
	Deadline *time.Time `json:"deadline,omitempty"`
}

// maxAnnounced bounds the announcements of one record: there is one for each kind, and
// EC2 schedules one or two events for an instance. What is beyond is the weakest.
const maxAnnounced = 8

// maxHooks bounds the hooks of one record. A group has at most 50 hooks, and one or two
// in practice.
const maxHooks = 8

// sameDeadline is how far two deadlines may lie apart and still be the same one.
// EventBridge stamps whole seconds and the metadata service gives whole seconds.
const sameDeadline = 2 * time.Second

func announcementOf(n Notice) Announcement {
	return Announcement{
		Kind: n.Kind, Event: n.EventID, Source: n.Source, Action: n.Action,
		Noticed: n.Noticed.UTC(), Received: n.Received.UTC(), Deadline: pointer(n.Deadline),
	}
}

// NewRecord is the record of a node's first notice.
func NewRecord(n Notice) Record {
	r := Record{Instance: n.InstanceID, Phase: Noticed}.with([]Announcement{announcementOf(n)})
	r, _ = r.withHook(n.Hook)
	return r
}

// announcements are all that stand; a record has one at least.
func (r Record) announcements() []Announcement {
	if len(r.Announced) > 0 {
		return slices.Clone(r.Announced)
	}
	return []Announcement{{
		Kind: r.Kind, Event: r.Event, Source: r.Source, Action: r.Action,
		Noticed: r.Noticed, Received: r.Received, Deadline: r.Deadline,
	}}
}

// with returns the record of these announcements, of which there has to be one at least:
// the strongest names the record, and the earliest deadline is the record's.
func (r Record) with(list []Announcement) Record {
	slices.SortStableFunc(list, func(a, b Announcement) int {
		if d := b.Kind.strength() - a.Kind.strength(); d != 0 {
			return d
		}
		return compareDeadlines(a.Deadline, b.Deadline)
	})
	list = list[:min(len(list), maxAnnounced)]
	top := list[0]
	r.Kind, r.Event, r.Source, r.Action = top.Kind, top.Event, top.Source, top.Action
	r.Noticed, r.Received, r.Deadline = top.Noticed, top.Received, nil
	for _, a := range list {
		if compareDeadlines(a.Deadline, r.Deadline) < 0 {
			r.Deadline = a.Deadline
		}
	}
	r.Announced = nil
	if len(list) > 1 {
		r.Announced = list
	}
	return r
}

// compareDeadlines orders deadlines; none is the latest.
func compareDeadlines(a, b *time.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.Compare(*b)
}

// same reports whether the notice speaks of what a has announced. An instance has one
// announcement of each kind, whichever source brings it; only scheduled events can be
// several. The two sources name those differently, so that the start of the window tells
// too.
func (a Announcement) same(n Notice) bool {
	if a.Kind != n.Kind {
		return false
	}
	if a.Kind != ScheduledEvent || a.Event == n.EventID {
		return true
	}
	return a.Source != n.Source && a.Deadline != nil && !n.Deadline.IsZero() && a.Deadline.Sub(n.Deadline).Abs() <= sameDeadline
}

// Merge adds a further notice about the same instance. The strongest kind wins and
// brings its event and source with it, the deadline only tightens, and the phase
// stays. It reports whether the notice changed anything.
//
// The two sources announce the same interruption with deadlines that differ by a
// second or so, as one of them is computed; that alone is no news, so a deadline
// tightens only by more than sameDeadline.
func (r Record) Merge(n Notice) (Record, bool) {
	list := r.announcements()
	changed := false
	if i := slices.IndexFunc(list, func(a Announcement) bool { return a.same(n) }); i < 0 {
		if a := announcementOf(n); !r.covers(a) {
			list = append(list, a)
			changed = true
		}
	} else {
		a := &list[i]
		if !n.Deadline.IsZero() && (a.Deadline == nil || n.Deadline.Before(a.Deadline.Add(-sameDeadline))) {
			a.Deadline = pointer(n.Deadline)
			changed = true
		}
		if a.Kind == StateChange && over(n.Action) && !over(a.Action) {
			a.Action = n.Action
			changed = true
		}
	}
	merged := r.with(list)
	merged, hooked := merged.withHook(n.Hook)
	if !changed && !hooked || merged.String() == r.String() {
		return r, false
	}
	return merged, true
}

// covers reports whether the announcement adds nothing to the record: the instance is sure
// to end anyway, for a stronger reason, and not later.
func (r Record) covers(a Announcement) bool {
	return r.Kind.Certain() && r.Kind.Stronger(a.Kind) && compareDeadlines(r.Deadline, a.Deadline) <= 0
}

// over reports whether a state of an instance is one in which it does not run any more.
func over(state string) bool { return state == ActionStopped || state == ActionTerminated }

func (r Record) withHook(h *Hook) (Record, bool) {
	if h == nil || len(r.Hooks) >= maxHooks || slices.ContainsFunc(r.Hooks, h.Same) {
		return r, false
	}
	r.Hooks = append(slices.Clone(r.Hooks), *h)
	return r, true
}

// Withdraw takes back what the notice says does not stand any more. found is false where
// the record knows of no such announcement; left is false where no other one stands, and
// the record is then returned as it was.
func (r Record) Withdraw(n Notice) (rest Record, found, left bool) {
	list := r.announcements()
	i := slices.IndexFunc(list, func(a Announcement) bool { return a.same(n) })
	if i < 0 {
		return r, false, true
	}
	list = slices.Delete(list, i, i+1)
	if len(list) == 0 {
		return r, true, false
	}
	return r.with(list), true, true
}

// Tighten gives the announcement of a kind the deadline d, where it has none or a later
// one. Nothing changes where the record has no such announcement.
func (r Record) Tighten(kind Kind, d time.Time) Record {
	list := r.announcements()
	i := slices.IndexFunc(list, func(a Announcement) bool { return a.Kind == kind })
	if i < 0 || list[i].Deadline != nil && !d.Before(*list[i].Deadline) {
		return r
	}
	list[i].Deadline = pointer(d)
	return r.with(list)
}
