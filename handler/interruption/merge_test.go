package interruption

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func someNotice(r *rand.Rand) Notice {
	n := Notice{Kind: Kinds()[r.IntN(len(Kinds()))], Source: Sources()[r.IntN(2)], EventID: "e", InstanceID: "i", Noticed: t0, Received: t0}
	if n.Kind.Certain() {
		n.Deadline = t0.Add(time.Duration(r.IntN(200)) * time.Second)
	}
	return n
}

// Notices about one instance, in any order: the strongest kind wins, the deadline only
// tightens, and a notice that was already merged changes nothing.
func TestMergeProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		rec := NewRecord(someNotice(r))
		for range r.IntN(6) {
			n := someNotice(r)
			if n.Kind != ScheduledEvent { // which can be put off, see TestReschedules
				n.Noticed = t0.Add(time.Duration(r.IntN(3)) * time.Minute)
			}
			merged, changed := rec.Merge(n)
			if rec.Kind.Stronger(merged.Kind) || n.Kind.Stronger(merged.Kind) {
				t.Fatalf("%s and %s merged to %s", rec.Kind, n.Kind, merged.Kind)
			}
			if !rec.Deadline.IsZero() && (merged.Deadline.IsZero() || merged.Deadline.After(rec.Deadline)) {
				t.Fatalf("deadline %v became %v", rec.Deadline, merged.Deadline)
			}
			if !n.Deadline.IsZero() && merged.Deadline.After(n.Deadline.Add(sameDeadline)) {
				t.Fatalf("deadline %v, though a notice says %v", merged.Deadline, n.Deadline)
			}
			if changed != (merged.String() != rec.String()) {
				t.Fatalf("changed %v: %s to %s", changed, rec, merged)
			}
			if again, changed := merged.Merge(n); changed {
				t.Fatalf("a second time it changes %s to %s", merged, again)
			}
			rec = merged
		}
	}
}

// Only a scheduled event can be put off: the same event, by the source that announced it, said later.
// Whatever else has a later time does not loosen the deadline.
func TestReschedules(t *testing.T) {
	window := Notice{Kind: ScheduledEvent, Source: Queue, EventID: "e", InstanceID: "i", Noticed: t0, Received: t0, Deadline: t0.Add(time.Hour), Action: ActionReboot}
	for name, tt := range map[string]struct {
		change func(n *Notice)
		want   time.Duration // the deadline then
	}{
		"put off":               {func(*Notice) {}, 2 * time.Hour},
		"moved forward":         {func(n *Notice) { n.Deadline = t0.Add(10 * time.Minute) }, 10 * time.Minute},
		"said at the same time": {func(n *Notice) { n.Noticed = t0 }, time.Hour},
		"another event":         {func(n *Notice) { n.EventID = "e-2" }, time.Hour},
		"another source":        {func(n *Notice) { n.Source = IMDS }, time.Hour},
		"no time":               {func(n *Notice) { n.Deadline = time.Time{} }, time.Hour},
		"another kind":          {func(n *Notice) { n.Kind, n.Action = SpotInterruption, ActionTerminate }, time.Hour},
	} {
		n := window
		n.Noticed, n.Received, n.Deadline = t0.Add(time.Minute), t0.Add(time.Minute), t0.Add(2*time.Hour)
		tt.change(&n)
		if got, _ := NewRecord(window).Merge(n); got.Deadline.Sub(t0) != tt.want {
			t.Errorf("%s: deadline after %v, want %v", name, got.Deadline.Sub(t0), tt.want)
		}
	}

	// A second spot notice that allows more time, said at another moment, is no such thing.
	spot := Notice{Kind: SpotInterruption, Source: Queue, EventID: "e", InstanceID: "i", Noticed: t0, Received: t0, Deadline: t0.Add(2 * time.Minute)}
	for _, id := range []string{"e", "e-2"} {
		n := spot
		n.EventID, n.Noticed, n.Received, n.Deadline = id, t0.Add(time.Minute), t0.Add(time.Minute), t0.Add(3*time.Minute)
		if got, _ := NewRecord(spot).Merge(n); got.Deadline.Sub(t0) != 2*time.Minute {
			t.Errorf("event %s: a later spot notice makes the deadline %v", id, got.Deadline.Sub(t0))
		}
	}
}

// A notice is recognized as the other source's announcement if their deadlines are within two seconds of each other,
// or, if one of the sources gives none, by when EC2 announced it.
func TestRepeats(t *testing.T) {
	minute := t0.Add(time.Minute)
	for name, tt := range map[string]struct {
		deadline, other time.Time // of the announcement, and of the notice
		later           time.Duration
		want            bool
	}{
		"the same deadline":               {minute, minute.Add(time.Second), time.Hour, true},
		"another deadline":                {minute, minute.Add(10 * time.Second), 0, false},
		"the announcement has none":       {time.Time{}, minute, time.Second, true},
		"the notice has none":             {minute, time.Time{}, time.Second, true},
		"neither has one":                 {time.Time{}, time.Time{}, time.Second, true},
		"none, and said at another time":  {time.Time{}, minute, 10 * time.Second, false},
		"none either, at another time":    {minute, time.Time{}, 10 * time.Second, false},
		"neither has one, another time":   {time.Time{}, time.Time{}, 10 * time.Second, false},
		"the same deadline, just earlier": {minute, minute.Add(-time.Second), -time.Hour, true},
	} {
		a := Announcement{Kind: SpotInterruption, Event: "e", Source: Queue, Noticed: t0, Received: t0, Deadline: tt.deadline}
		at := t0.Add(tt.later)
		n := Notice{Kind: SpotInterruption, Source: IMDS, EventID: "i", InstanceID: "i", Noticed: at, Received: at, Deadline: tt.other}
		if got := a.repeats(n); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// The same notices in another order make the same record. The first announcement of a kind
// gives it its name; only that can differ.
func TestMergeConverges(t *testing.T) {
	actions := map[Kind][]string{
		ScheduledEvent: {ActionReboot, ActionRetirement, ActionStop, ActionMaintenance}, SpotInterruption: {ActionTerminate},
		CapacityReservationInterruption: {ActionStop}, StateChange: {ActionStopping, ActionStopped, ActionShuttingDown, ActionTerminated},
	}
	plain := func(r Record) Record {
		r.Event, r.Source = "", ""
		r.Announced = slices.Clone(r.Announced)
		for i := range r.Announced {
			r.Announced[i].Event, r.Announced[i].Source = "", ""
		}
		slices.SortFunc(r.Hooks, func(a, b Hook) int { return strings.Compare(a.Name, b.Name) })
		return r
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		var notices []Notice
		for i := range 1 + r.IntN(7) {
			n := someNotice(r)
			n.EventID = "e" + strconv.Itoa(i)
			if a := actions[n.Kind]; len(a) > 0 {
				n.Action = a[i%len(a)]
			}
			if n.Kind != RebalanceRecommendation { // no two within sameDeadline of each other
				n.Deadline = t0.Add(time.Duration(1+10*i+r.IntN(4)) * time.Second)
			}
			if n.Kind == InstanceTerminating {
				n.Hook = &Hook{Group: "g", Name: n.EventID}
			}
			notices = append(notices, n)
		}
		merge := func() Record {
			rec := NewRecord(notices[0])
			for _, n := range notices[1:] {
				rec, _ = rec.Merge(n)
			}
			return plain(rec)
		}
		first := merge()
		for range 5 {
			r.Shuffle(len(notices), func(i, j int) { notices[i], notices[j] = notices[j], notices[i] })
			if again := merge(); again.String() != first.String() {
				t.Fatalf("%+v\nin one order %s\nin another %s", notices, first, again)
			}
		}
	}
}

// A hook's timeout is the deadline of its announcement, as long as that stands, and only
// tightens.
func TestTighten(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ending := Notice{Kind: InstanceTerminating, Source: Queue, EventID: "hook", InstanceID: "i-1", Noticed: now, Received: now}
	spot := Notice{Kind: SpotInterruption, Source: Queue, EventID: "spot", InstanceID: "i-1", Noticed: now, Received: now, Deadline: now.Add(2 * time.Minute)}
	both, _ := NewRecord(ending).Merge(spot)
	for name, tt := range map[string]struct {
		rec  Record
		d    time.Duration
		want time.Duration
	}{
		"had none":                 {NewRecord(ending), time.Hour, time.Hour},
		"had a later one":          {NewRecord(ending).Tighten(InstanceTerminating, now.Add(2*time.Hour)), time.Hour, time.Hour},
		"had an earlier one":       {NewRecord(ending).Tighten(InstanceTerminating, now.Add(time.Minute)), time.Hour, time.Minute},
		"a spot notice is earlier": {both, time.Hour, 2 * time.Minute},
		"a spot notice is later":   {both, time.Minute, time.Minute},
		"no such announcement":     {NewRecord(spot), time.Minute, 2 * time.Minute},
	} {
		got := tt.rec.Tighten(InstanceTerminating, now.Add(tt.d))
		if !got.Deadline.Equal(now.Add(tt.want)) {
			t.Errorf("%s: deadline %v, want %s", name, got.Deadline, tt.want)
		}
		if !slices.ContainsFunc(tt.rec.Announcements(), func(a Announcement) bool { return a.Event == ending.EventID }) {
			continue
		}
		if again, changed := got.Merge(ending); changed || again.String() != got.String() {
			t.Errorf("%s: the same notice again makes %s of %s", name, again, got)
		}
	}
}

// A record holds 8 announcements at most: the strongest, and of those the earliest.
func TestAnnouncementsAreBounded(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	event := func(i int) Notice {
		return Notice{
			Kind: ScheduledEvent, Action: ActionReboot, Source: Queue, EventID: fmt.Sprintf("event-%02d", i),
			Noticed: start, Received: start, Deadline: start.Add(time.Duration(100-i) * time.Hour),
		}
	}
	r := NewRecord(event(0))
	for i := 1; i < 12; i++ {
		r, _ = r.Merge(event(i))
	}
	r, _ = r.Merge(Notice{Kind: RebalanceRecommendation, Source: Queue, EventID: "recommended", Noticed: start, Received: start})
	var got []string
	for _, a := range r.Announcements() {
		got = append(got, a.Event)
	}
	want := []string{"recommended", "event-11", "event-10", "event-09", "event-08", "event-07", "event-06", "event-05"}
	if diff := cmp.Diff(want, got); diff != "" || r.Kind != RebalanceRecommendation {
		t.Errorf("%s (-want +got):\n%s", r.Kind, diff)
	}
}

func TestRecommended(t *testing.T) {
	of := func(kind Kind) Record { return NewRecord(Notice{Kind: kind}) }
	for name, tt := range map[string]struct {
		notice   Kind
		record   Record
		recorded bool
		want     bool
	}{
		"a recommendation":                        {RebalanceRecommendation, Record{}, false, true},
		"an event of a recommended instance":      {ScheduledEvent, of(RebalanceRecommendation), true, true},
		"the same, and the record was not read":   {ScheduledEvent, of(RebalanceRecommendation), false, false},
		"an event of one with another event":      {ScheduledEvent, of(ScheduledEvent), true, false},
		"an interruption of a recommended one":    {SpotInterruption, of(RebalanceRecommendation), true, false},
		"an interruption of one without a record": {SpotInterruption, Record{}, false, false},
	} {
		if got := (Case{Notice: Notice{Kind: tt.notice}, Record: tt.record, Recorded: tt.recorded}).Recommended(); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
