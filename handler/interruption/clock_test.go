package interruption

import (
	"testing"
	"time"
)

// The node's clock, by which the daemon of mode imds receives and judges, is ahead; that of the process that
// drains is right. EC2's word is not dropped, and the drain does not last longer than the instance.
func TestClockAhead(t *testing.T) {
	ec2 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, ahead := range []time.Duration{0, 2 * time.Minute, 4 * time.Minute, 6 * time.Minute, 24 * time.Hour} {
		node := ec2.Add(ahead)
		n := Notice{
			Kind: SpotInterruption, Source: IMDS, EventID: "x", InstanceID: "i-0123456789abcdef0", Action: ActionTerminate,
			Noticed: ec2, Received: node, Deadline: ec2.Add(SpotNotice),
		}
		j := Judge(Case{Node: Node{Instance: n.InstanceID, Ready: true}, Notice: n, Now: node})
		if j.Verdict != Accepted {
			t.Errorf("%s ahead: %s (%s), want accepted", ahead, j.Verdict, j.Reason)
			continue
		}
		began := ec2.Add(2 * time.Second)
		if got := n.Deadline.Sub(j.Record.DrainEndFrom(began)); got != 5*time.Second {
			t.Errorf("%s ahead: the drain ends %s before EC2's deadline, want 5 s", ahead, got)
		}
	}
	stopped := Notice{
		Kind: SpotInterruption, Source: IMDS, EventID: "x", InstanceID: "i-0123456789abcdef0", Action: ActionStop,
		Noticed: ec2, Received: ec2.Add(time.Hour), Deadline: ec2.Add(SpotNotice),
	}
	j := Judge(Case{Node: Node{Instance: stopped.InstanceID, Ready: true}, Notice: stopped, Now: stopped.Received})
	if j.Verdict != Stale {
		t.Errorf("an instance that was to be stopped an hour ago, and runs: %s, want stale", j.Verdict)
	}
}

// The window of a reboot has begun, and the instance still runs, when EC2 interrupts it: the pods have EC2's two
// minutes. If the interruption was announced before the window, the window is the deadline.
func TestWindowBeforeAnInterruption(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const id = "i-0123456789abcdef0"
	for window, want := range map[time.Duration]time.Duration{
		-10 * time.Minute: SpotNotice,
		-time.Second:      SpotNotice,
		0:                 SpotNotice, // EC2 says whole seconds
		time.Minute:       time.Minute,
		time.Hour:         SpotNotice,
	} {
		reboot := Notice{
			Kind: ScheduledEvent, Source: Queue, EventID: "reboot", InstanceID: id, Action: ActionReboot,
			Noticed: t0.Add(-24 * time.Hour), Received: t0.Add(-24 * time.Hour), Deadline: t0.Add(window),
		}
		spot := Notice{Kind: SpotInterruption, Source: Queue, EventID: "spot", InstanceID: id, Noticed: t0, Received: t0, Deadline: t0.Add(SpotNotice), Action: ActionTerminate}
		for _, phase := range []Phase{Draining, DeadlineReached} {
			rec := NewRecord(reboot)
			rec.Phase, rec.Boot = phase, "boot-1"
			if phase.Over() {
				rec.Ended = t0
			}
			j := Judge(Case{
				Node: Node{Instance: id, Ready: true, Boot: "boot-1"}, Notice: spot, Now: t0, Record: rec, Recorded: true,
				Rules: Rules{ScheduledLead: 30 * time.Minute},
			})
			if got := j.Record.Deadline.Sub(t0); j.Verdict != Accepted || j.Record.Kind != SpotInterruption || got != want {
				t.Errorf("window in %s, %s: %s, deadline in %s, want in %s", window, phase, j.Verdict, got, want)
			}
		}
	}
}

// At the end of a drain, a window gives way to a later interruption, if that one is certain.
func TestOutlasted(t *testing.T) {
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	event := Announcement{Kind: ScheduledEvent, Event: "reboot", Source: Queue, Noticed: t0, Received: t0, Action: ActionReboot, Deadline: t0.Add(time.Minute)}
	spot := Announcement{Kind: SpotInterruption, Event: "spot", Source: Queue, Noticed: t0, Received: t0, Action: ActionTerminate, Deadline: t0.Add(SpotNotice)}
	risk := Announcement{Kind: RebalanceRecommendation, Event: "risk", Source: Queue, Noticed: t0, Received: t0}
	for name, tt := range map[string]struct {
		list []Announcement
		at   time.Duration
		want bool
	}{
		"before the drain ends":            {[]Announcement{event, spot}, time.Minute - lastCall - time.Second, false},
		"at its end":                       {[]Announcement{event, spot}, time.Minute - lastCall, true},
		"when that is over, too":           {[]Announcement{event, spot}, SpotNotice - lastCall, false},
		"a recommendation is not certain":  {[]Announcement{event, risk}, time.Minute, false},
		"a window alone":                   {[]Announcement{event}, time.Minute, false},
		"another window is not certain":    {[]Announcement{event, {Kind: ScheduledEvent, Event: "b", Deadline: t0.Add(time.Hour)}}, time.Minute, false},
		"an end without a time is ignored": {[]Announcement{event, {Kind: StateChange, Event: "b", Action: ActionStopping}}, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			rec := Record{Phase: Draining}.with(tt.list)
			rest, changed := rec.Outlasted(t0.Add(tt.at))
			if changed != tt.want {
				t.Fatalf("changed %v, want %v", changed, tt.want)
			}
			if !changed {
				if rest.String() != rec.String() {
					t.Errorf("%s", rest)
				}
				return
			}
			if rest.Kind != SpotInterruption || !rest.Deadline.Equal(spot.Deadline) || len(rest.Announced) > 0 || rest.Phase != Draining || len(rest.Past) != 1 {
				t.Errorf("%s", rest)
			}
		})
	}
}
