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
