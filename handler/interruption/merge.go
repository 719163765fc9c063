package interruption

import (
	"cmp"
	"slices"
	"time"
)

// Announcement is one thing that EC2 has said about an instance and that still stands.
type Announcement struct {
	Kind     Kind      `json:"kind"`
	Event    string    `json:"event"`
	Source   Source    `json:"source"`
	Action   string    `json:"action,omitempty"`
	Noticed  time.Time `json:"noticed"`
	Received time.Time `json:"received"`
	Deadline time.Time `json:"deadline,omitzero"`

	// Off is when somebody cancelled it; zero if nobody has.
	Off time.Time `json:"off,omitzero"`
}

// staysOffFor is how long after a recommendation was cancelled similar ones count as the same:
// the metadata service moves its noticeTime while the risk lasts.
const staysOffFor = 10 * time.Minute

// sameDeadline is how far apart two deadlines can be and still count as the same. EventBridge
// stamps whole seconds and the metadata service gives whole seconds.
const sameDeadline = 2 * time.Second

func announcementOf(n Notice) Announcement {
	return Announcement{
		Kind: n.Kind, Event: n.EventID, Source: n.Source, Action: n.Action,
		Noticed: n.Noticed.UTC(), Received: n.Received.UTC(), Deadline: n.Deadline.UTC(),
	}
}

// NewRecord is the record of a node's first notice.
func NewRecord(n Notice) Record {
	r := Record{Instance: n.InstanceID, Phase: Noticed, Release: n.Release}.with([]Announcement{announcementOf(n)})
	return r.withHook(n.Hook)
}

// Announcements lists all that stand; a record has at least one.
func (r Record) Announcements() []Announcement {
	if len(r.Announced) > 0 {
		return slices.Clone(r.Announced)
	}
	return []Announcement{{
		Kind: r.Kind, Event: r.Event, Source: r.Source, Action: r.Action,
		Noticed: r.Noticed, Received: r.Received, Deadline: r.Deadline,
	}}
}

// with returns the record of these announcements, at least one: the strongest names the record,
// and the earliest deadline is the record's.
func (r Record) with(list []Announcement) Record {
	slices.SortStableFunc(list, func(a, b Announcement) int {
		if d := b.Kind.strength() - a.Kind.strength(); d != 0 {
			return d
		}
		return cmp.Or(CompareDeadlines(a.Deadline, b.Deadline), cmp.Compare(a.Event, b.Event))
	})
	list = standing(list)
	list = list[:min(len(list), maxAnnounced)]
	top := list[0]
	r.Kind, r.Event, r.Source, r.Action = top.Kind, top.Event, top.Source, top.Action
	r.Noticed, r.Received, r.Deadline = top.Noticed, top.Received, time.Time{}
	for _, a := range list {
		if !a.overtaken(list) {
			r.Deadline = Earlier(r.Deadline, a.Deadline)
		}
	}
	r.Announced = nil
	if len(list) > 1 {
		r.Announced = list
	}
	return r
}

// overtaken reports whether EC2 has announced another end of the instance after the window of this
// scheduled event had begun: that has its own time, and the window is no deadline any more.
func (a Announcement) overtaken(list []Announcement) bool {
	return a.Kind == ScheduledEvent && !a.Deadline.IsZero() && slices.ContainsFunc(list, func(b Announcement) bool {
		return b.Kind.Certain() && b.Deadline.After(a.Deadline) && !b.Noticed.Before(a.Deadline)
	})
}

// Outlasted is the record at the end of a drain, without the windows that begin now, if the instance is certain to end
// later for another reason. EC2 may let a window pass, and there's no time left before it begins. changed is false if
// no window was dropped.
func (r Record) Outlasted(now time.Time) (rest Record, changed bool) {
	list := r.Announcements()
	later := func(b Announcement) bool { return b.Kind.Certain() && b.Deadline.Add(-lastCall).After(now) }
	d := r.drop(func(a Announcement) bool {
		passes := a.Kind == ScheduledEvent && !a.Deadline.IsZero() && !now.Before(a.Deadline.Add(-lastCall))
		return passes && slices.ContainsFunc(list, later)
	})
	return d.rest, len(d.gone) > 0
}

// standing leaves out announcements that add nothing to another one in the list. The result
// does not depend on the order in which they came, so the record does not either.
func standing(list []Announcement) []Announcement {
	var kept []Announcement
	for _, a := range list {
		if !slices.ContainsFunc(list, func(b Announcement) bool { return b.covers(a) }) {
			kept = append(kept, a)
		}
	}
	return kept
}

// covers reports whether b adds nothing to a: the instance is certain to end anyway, for a
// stronger reason, no later, and both agree on whether it comes back. What a group announces
// always stays: only later is it known when its hook times out.
func (a Announcement) covers(b Announcement) bool {
	if !a.Kind.Certain() || !a.Kind.Stronger(b.Kind) || b.Kind == InstanceTerminating || CompareDeadlines(a.Deadline, b.Deadline) > 0 {
		return false
	}
	return !a.comesBack() || b.Kind == RebalanceRecommendation || b.Kind != ScheduledEvent && b.comesBack()
}

// CompareDeadlines orders two times, as cmp.Compare does; zero is the latest.
func CompareDeadlines(a, b time.Time) int {
	switch {
	case a.IsZero() == b.IsZero():
		return a.Compare(b)
	case a.IsZero():
		return 1
	}
	return -1
}

// same reports whether the notice is about what a has announced. An instance has one
// announcement of each kind, whichever source brings it; only scheduled events can be several.
// The two sources name those differently, so the start of the window identifies them too.
func (a Announcement) same(n Notice) bool {
	if a.Kind != n.Kind {
		return false
	}
	if a.Kind != ScheduledEvent || a.Event == n.EventID {
		return true
	}
	return a.Source != n.Source && !a.Deadline.IsZero() && !n.Deadline.IsZero() && a.Deadline.Sub(n.Deadline).Abs() <= sameDeadline
}

// repeats reports whether the notice is the same announcement again rather than the next one of
// its kind: the same event, or the other source's name for it, or an earlier recommendation
// that adds nothing to it.
func (a Announcement) repeats(n Notice) bool {
	switch {
	case n.Source == Rehearsal: // EC2 has never said it
		return false
	case a.Kind == ScheduledEvent:
		return a.same(n)
	case !a.Off.IsZero() && a.Kind == n.Kind && !n.Noticed.After(a.Off):
		return true // EC2 had said it by then, under whatever id
	case !a.Off.IsZero() && a.Kind == n.Kind && n.Kind == RebalanceRecommendation && n.Received.Before(a.Off.Add(staysOffFor)):
		return true
	case a.Kind != n.Kind:
		return n.Kind == RebalanceRecommendation && a.covers(announcementOf(n)) && !n.Noticed.After(a.Received)
	case a.Source == n.Source:
		return a.Event == n.EventID
	case !a.Deadline.IsZero() && !n.Deadline.IsZero():
		return a.Deadline.Sub(n.Deadline).Abs() <= sameDeadline
	}
	return a.Noticed.Sub(n.Noticed).Abs() <= sameDeadline
}

// reschedules reports whether the notice gives a known event another time: EC2 or the
// instance's owner can postpone its window. The latest word then counts.
func (a Announcement) reschedules(n Notice) bool {
	return a.Kind == ScheduledEvent && a.Event == n.EventID && a.Source == n.Source && !a.Deadline.IsZero() && !n.Deadline.IsZero() &&
		!n.Noticed.Equal(a.Noticed) && n.Deadline.Sub(a.Deadline).Abs() > sameDeadline
}

// Merge adds a further notice about the same instance. The strongest kind wins and brings its
// event and source with it; the deadline only tightens, unless a scheduled event is put off;
// the phase stays. It reports whether the notice changed anything.
//
// The two sources announce the same interruption with deadlines that differ by about a second,
// as one of them is computed. That alone is no news, so a deadline tightens only by more than
// sameDeadline.
//
// A scheduled event that is past stays past, however late its announcement comes again.
func (r Record) Merge(n Notice) (Record, bool) {
	if Past(r.Past).Has(n) {
		return r, false
	}
	list := r.Announcements()
	if i := slices.IndexFunc(list, func(a Announcement) bool { return a.same(n) }); i < 0 {
		list = append(list, announcementOf(n))
	} else {
		a := &list[i]
		if a.reschedules(n) {
			if n.Noticed.After(a.Noticed) {
				a.Deadline, a.Noticed = n.Deadline.UTC(), n.Noticed.UTC()
			}
		} else if !n.Deadline.IsZero() && (a.Deadline.IsZero() || n.Deadline.Before(a.Deadline.Add(-sameDeadline))) {
			a.Deadline = n.Deadline.UTC()
		}
		if a.Kind == StateChange && slices.Index(states, n.Action) > slices.Index(states, a.Action) {
			a.Action = n.Action
		}
	}
	merged := r.with(list).withHook(n.Hook)
	if merged.String() == r.String() {
		return r, false
	}
	return merged, true
}

// states are those of an instance that ends, in the order in which it passes through them. The
// last one counts, whichever comes first.
var states = []string{ActionStopping, ActionStopped, ActionShuttingDown, ActionTerminated}

func (r Record) withHook(h *Hook) Record {
	if h == nil || len(r.Hooks) >= maxHooks || slices.ContainsFunc(r.Hooks, h.Same) {
		return r
	}
	r.Hooks = append(slices.Clone(r.Hooks), *h)
	return r
}

// dropped is a record without some of its announcements.
type dropped struct {
	rest   Record // unchanged if nothing stands
	gone   []Announcement
	stands bool // there is an announcement left
}

// drop takes back the announcements for which back returns true.
func (r Record) drop(back func(Announcement) bool) dropped {
	var gone, list []Announcement
	for _, a := range r.Announcements() {
		if back(a) {
			gone = append(gone, a)
		} else {
			list = append(list, a)
		}
	}
	switch {
	case len(gone) == 0:
		return dropped{rest: r, stands: true}
	case len(list) == 0:
		return dropped{rest: r, gone: gone}
	}
	r.Past = Past(r.Past).withScheduled(gone)
	return dropped{rest: r.with(list), gone: gone, stands: true}
}

// Tighten gives the announcement of a kind the deadline d, if it has none or a later one.
// Nothing changes if the record has no such announcement.
func (r Record) Tighten(kind Kind, d time.Time) Record {
	list := r.Announcements()
	i := slices.IndexFunc(list, func(a Announcement) bool { return a.Kind == kind })
	if i < 0 || !list[i].Deadline.IsZero() && !d.Before(list[i].Deadline) {
		return r
	}
	list[i].Deadline = d.UTC()
	return r.with(list)
}
