package interruption

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func someNotice(r *rand.Rand) Notice {
	n := Notice{Kind: Kinds()[r.IntN(len(Kinds()))], Source: Sources()[r.IntN(2)], EventID: "e", InstanceID: "i", Noticed: t0, Received: t0}
	if n.Kind.Certain() {
		n.Deadline = t0.Add(time.Duration(r.IntN(200)) * time.Second)
	}
	return n
}

// Notices of one instance, in any order: the strongest kind wins, the deadline only
// tightens, and a notice that was merged changes nothing the second time.
func TestMergeProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		rec := NewRecord(someNotice(r))
		for range r.IntN(6) {
			n := someNotice(r)
			merged, changed := rec.Merge(n)
			if rec.Kind.Stronger(merged.Kind) || n.Kind.Stronger(merged.Kind) {
				t.Fatalf("%s and %s merged to %s", rec.Kind, n.Kind, merged.Kind)
			}
			if rec.Deadline != nil && (merged.Deadline == nil || merged.Deadline.After(*rec.Deadline)) {
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

// The same notices in another order make the same record. What announced a kind first gives
// its name to it; that alone may differ.
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

// A stop is one from which the instance comes back, unless something else ends it.
func TestComesBack(t *testing.T) {
	n := func(kind Kind, action string, in time.Duration) Notice {
		return Notice{Kind: kind, Action: action, EventID: action, InstanceID: "i", Noticed: t0, Received: t0, Deadline: t0.Add(in)}
	}
	for name, tt := range map[string]struct {
		list []Notice
		want bool
	}{
		"reboot":                      {[]Notice{n(ScheduledEvent, ActionReboot, time.Hour)}, true},
		"maintenance":                 {[]Notice{n(ScheduledEvent, ActionMaintenance, time.Hour)}, true},
		"retirement":                  {[]Notice{n(ScheduledEvent, ActionRetirement, time.Hour)}, false},
		"reboot and retirement":       {[]Notice{n(ScheduledEvent, ActionReboot, time.Hour), n(ScheduledEvent, ActionRetirement, 2*time.Hour)}, false},
		"reboot and recommendation":   {[]Notice{n(ScheduledEvent, ActionReboot, time.Hour), n(RebalanceRecommendation, "", 0)}, true},
		"recommendation":              {[]Notice{n(RebalanceRecommendation, "", 0)}, false},
		"reboot and notice":           {[]Notice{n(ScheduledEvent, ActionReboot, time.Minute), n(SpotInterruption, ActionTerminate, 2*time.Minute)}, false},
		"notice":                      {[]Notice{n(SpotInterruption, ActionTerminate, time.Minute)}, false},
		"notice of a stop":            {[]Notice{n(SpotInterruption, ActionStop, time.Minute), n(StateChange, ActionStopping, 2*time.Minute)}, true},
		"notice of a stop, retired":   {[]Notice{n(SpotInterruption, ActionStop, time.Minute), n(ScheduledEvent, ActionRetirement, time.Hour)}, false},
		"hibernation":                 {[]Notice{n(SpotInterruption, ActionHibernate, 0), n(StateChange, ActionStopping, time.Minute)}, true},
		"hibernation, retired":        {[]Notice{n(SpotInterruption, ActionHibernate, 0), n(ScheduledEvent, ActionRetirement, time.Hour)}, false},
		"terminated while it stopped": {[]Notice{n(StateChange, ActionStopping, 0), n(StateChange, ActionTerminated, time.Minute)}, false},
		"lifecycle hook":              {[]Notice{n(InstanceTerminating, "", time.Minute), n(StateChange, ActionStopping, 0)}, false},
	} {
		rec := NewRecord(tt.list[0])
		for _, n := range tt.list[1:] {
			rec, _ = rec.Merge(n)
		}
		if got := rec.ComesBack(); got != tt.want {
			t.Errorf("%s: %v, want %v: %s", name, got, tt.want, rec)
		}
	}
}

// A hook's timeout is the deadline of that announcement, as long as it stands, and only
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
		if got.Deadline == nil || !got.Deadline.Equal(now.Add(tt.want)) {
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

func TestRecordRoundTrip(t *testing.T) {
	rec := NewRecord(Notice{Kind: SpotInterruption, Source: IMDS, EventID: "e", InstanceID: "i-1", Action: "terminate",
		Noticed: t0, Received: t0.Add(time.Second), Deadline: t0.Add(2 * time.Minute)})
	rec.Replacement = &Replacement{Backend: "karpenter", Name: "c", Pool: "p", State: "Ready"}
	rec.Pods = &Pods{Total: 2, Graceful: 1, Left: 1}
	got, err := ParseRecord(rec.String())
	if err != nil || got.String() != rec.String() {
		t.Errorf("%s, %v; want %s", got, err, rec)
	}
	if len(rec.String()) > 1024 {
		t.Errorf("%d bytes, want at most 1 KiB on every Node", len(rec.String()))
	}
}

func TestParseRecordRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "no object": "[]", "no JSON": "}{", "no kind": `{"phase":"Noticed"}`, "other kind": `{"kind":"meteor","phase":"Noticed"}`,
		"other phase": `{"kind":"spot-interruption","phase":"Gone"}`, "no time": `{"kind":"spot-interruption","phase":"Noticed","deadline":"soon"}`,
		"huge": `{"kind":"spot-interruption","phase":"Noticed","event":"` + strings.Repeat("x", maxRecord) + `"}`,
	} {
		if rec, err := ParseRecord(text); err == nil {
			t.Errorf("%s: read as %s", name, rec)
		}
	}
}

// Anybody who may annotate a Node can write there: reading never panics, and what was
// read can be written and read again.
func FuzzParseRecord(f *testing.F) {
	f.Add(NewRecord(someNotice(rand.New(rand.NewPCG(1, 2)))).String())
	f.Add(`{"kind":"spot-interruption","phase":"Draining","pods":{"total":-1},"ours":[null]}`)
	f.Fuzz(func(t *testing.T, text string) {
		rec, err := ParseRecord(text)
		if err != nil {
			return
		}
		if again, err := ParseRecord(rec.String()); err != nil || again.String() != rec.String() {
			t.Errorf("%s became %s, %v", rec, again, err)
		}
	})
}
