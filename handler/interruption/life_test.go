package interruption

import (
	"testing"
	"time"
)

func TestDrainEnd(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		deadline, want time.Time
	}{
		"two minutes": {now.Add(2 * time.Minute), now.Add(2*time.Minute - lastCall)},
		"at once":     {now, now.Add(emergency)},
		"passed":      {now.Add(-time.Minute), now.Add(emergency)},
		"never":       {time.Time{}, time.Time{}},
	} {
		rec := Record{Received: now}
		if !tt.deadline.IsZero() {
			rec.Deadline = tt.deadline
		}
		if got := rec.DrainEnd(); !got.Equal(tt.want) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// A notice during a drain gives it no more time, unless it sets the deadline.
func TestDrainEndAfterAFurtherNotice(t *testing.T) {
	hook := NewRecord(Notice{Kind: InstanceTerminating, EventID: "hook", InstanceID: "i", Noticed: t0, Received: t0, Deadline: t0.Add(40 * time.Second)})
	for in, want := range map[time.Duration]time.Duration{
		SpotNotice:       40*time.Second - lastCall,
		10 * time.Second: 30*time.Second + emergency,
	} {
		at := t0.Add(30 * time.Second)
		rec, _ := hook.Merge(Notice{Kind: SpotInterruption, EventID: "spot", InstanceID: "i", Noticed: at, Received: at, Deadline: at.Add(in).Add(-30 * time.Second)})
		if got := rec.DrainEnd().Sub(t0); got != want {
			t.Errorf("with a deadline in %s: ends in %s, want %s", in, got, want)
		}
	}
}

// The instance comes back from a stop, unless something else ends it.
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

// It is too late to cancel once somebody was asked to end the instance.
func TestEnds(t *testing.T) {
	detached := &Replacement{Backend: "asg", Name: "i-new", Detached: true}
	for name, tt := range map[string]struct {
		rec      Record
		deleting bool
		want     bool
	}{
		"not released":            {Record{Kind: ScheduledEvent, Phase: Drained, Replacement: detached}, true, false},
		"its Node is deleted":     {Record{Kind: SpotInterruption, Phase: Released}, true, true},
		"left to EC2":             {Record{Kind: SpotInterruption, Phase: Released, Replacement: detached}, false, false},
		"detached and terminated": {Record{Kind: ScheduledEvent, Phase: Released, Replacement: detached}, false, true},
		"rehearsed, with release": {Record{Kind: SpotInterruption, Phase: Released, Source: Rehearsal, Replacement: detached}, false, true},
		"not detached in time":    {Record{Kind: ScheduledEvent, Phase: Released, Replacement: &Replacement{Backend: "asg", Name: "workers"}}, false, false},
		"with placeholders":       {Record{Kind: ScheduledEvent, Phase: Released, Replacement: &Replacement{Backend: "placeholder", Name: "p"}}, false, false},
		"without a replacement":   {Record{Kind: ScheduledEvent, Phase: Released}, false, false},
		"pods have moved to nodes that were there": {
			Record{Kind: RebalanceRecommendation, Phase: Released, Replacement: &Replacement{Backend: "spare"}}, false, false,
		},
	} {
		if got := tt.rec.Ends(tt.deleting); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// An instance that comes back has returned with another boot id or, if it slept, by being Ready long enough after.
func TestReturned(t *testing.T) {
	reboot := Notice{Kind: ScheduledEvent, Action: ActionReboot, EventID: "e", Noticed: t0, Received: t0, Deadline: t0.Add(time.Hour)}
	sleep := Notice{Kind: SpotInterruption, Action: ActionHibernate, EventID: "e", Noticed: t0, Received: t0, Deadline: t0}
	spot := Notice{Kind: SpotInterruption, Action: ActionTerminate, EventID: "e", Noticed: t0, Received: t0, Deadline: t0.Add(time.Minute)}
	for name, tt := range map[string]struct {
		notice     Notice
		was, boot  string
		readyAfter time.Duration // 0: it is not Ready
		want       bool
	}{
		"rebooted":                      {reboot, "boot-1", "boot-2", 0, true},
		"not yet":                       {reboot, "boot-1", "boot-1", time.Hour, false},
		"its first boot is not known":   {reboot, "", "boot-2", time.Hour, false},
		"its boot is not known":         {reboot, "boot-1", "", time.Hour, false},
		"woken up":                      {sleep, "boot-1", "boot-1", 2 * time.Hour, true},
		"still Ready, about to sleep":   {sleep, "boot-1", "boot-1", time.Second, false},
		"asleep":                        {sleep, "boot-1", "boot-1", 0, false},
		"one that does not come back":   {spot, "boot-1", "boot-2", time.Hour, false},
		"nor is Ready the next instant": {spot, "", "", 2 * time.Hour, false},
	} {
		rec := NewRecord(tt.notice)
		rec.Boot = tt.was
		var ready time.Time
		if tt.readyAfter > 0 {
			ready = t0.Add(tt.readyAfter)
		}
		if got := rec.Returned(tt.boot, ready); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestDrainEndFrom(t *testing.T) {
	rec := Record{Received: t0, Deadline: t0.Add(2 * time.Minute)}
	for name, tt := range map[string]struct {
		deadline, began, want time.Time
	}{
		"at once":              {rec.Deadline, t0, t0.Add(115 * time.Second)},
		"begun late":           {rec.Deadline, t0.Add(time.Hour), t0.Add(time.Hour + 20*time.Second)},
		"not known when":       {rec.Deadline, time.Time{}, t0.Add(115 * time.Second)},
		"begun before, by far": {rec.Deadline, t0.Add(-time.Hour), t0.Add(115 * time.Second)},
		"without a deadline":   {time.Time{}, t0, time.Time{}},
		"without either":       {time.Time{}, time.Time{}, time.Time{}},
	} {
		rec.Deadline = tt.deadline
		if got := rec.DrainEndFrom(tt.began); !got.Equal(tt.want) {
			t.Errorf("%s: ends at %s, want %s", name, got, tt.want)
		}
	}
}

// A state of an instance whose drain is over is no news, unless it says what nobody knew.
func TestEndsAsExpected(t *testing.T) {
	record := func(phase Phase, action string) Record {
		r := NewRecord(Notice{Kind: SpotInterruption, Action: action, EventID: "e", Noticed: t0, Received: t0, Deadline: t0.Add(time.Minute)})
		r.Phase = phase
		return r
	}
	state := func(r Record, action string) Record {
		r, _ = r.Merge(Notice{Kind: StateChange, Action: action, EventID: action, Noticed: t0.Add(time.Minute), Received: t0.Add(time.Minute)})
		return r
	}
	for name, tt := range map[string]struct {
		phase    Phase
		announce string
		state    string
		deleting bool
		want     bool
	}{
		"under way":                           {Draining, ActionTerminate, ActionShuttingDown, false, false},
		"under way, and being deleted":        {Draining, ActionTerminate, ActionShuttingDown, true, false},
		"over":                                {Released, ActionTerminate, ActionShuttingDown, false, true},
		"over, and gone for good":             {Released, ActionTerminate, ActionTerminated, false, false},
		"over, gone, and being deleted":       {Released, ActionTerminate, ActionTerminated, true, true},
		"a stop that ends in shutting down":   {Released, ActionStop, ActionShuttingDown, false, false},
		"a stop that goes on as it was meant": {Released, ActionStop, ActionStopping, false, true},
	} {
		old := record(tt.phase, tt.announce)
		if got := (Case{Node: Node{Deleting: tt.deleting}}).endsAsExpected(old, state(old, tt.state)); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
