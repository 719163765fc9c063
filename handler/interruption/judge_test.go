package interruption

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// at is a notice about the tests' instance, received that long after t0.
func at(kind Kind, after time.Duration, change ...func(*Notice)) Notice {
	n := Notice{Kind: kind, Source: Queue, EventID: "event-1", InstanceID: "i-1", Noticed: t0.Add(after), Received: t0.Add(after)}
	if kind == SpotInterruption {
		n.Deadline = n.Noticed.Add(2 * time.Minute)
	}
	for _, f := range change {
		f(&n)
	}
	return n
}

func event(id string) func(*Notice) { return func(n *Notice) { n.EventID = id } }
func does(action string) func(*Notice) {
	return func(n *Notice) { n.Action = action }
}
func window(in time.Duration) func(*Notice) {
	return func(n *Notice) { n.Deadline = t0.Add(in) }
}

// A queue can deliver a withdrawal before what it takes back.
func TestWithdrawalThatComesFirst(t *testing.T) {
	announced := at(ScheduledEvent, 0, does(ActionReboot), window(24*time.Hour))
	withdrawal := at(ScheduledEvent, time.Second, does(ActionReboot), func(n *Notice) { n.Withdrawn = true })
	other := NewRecord(at(SpotInterruption, 0))
	for name, c := range map[string]Case{
		"of a node without a record":       {},
		"of a node with another's record":  {Record: other, Recorded: true},
		"of a node with an earlier record": {Record: NewRecord(at(ScheduledEvent, 0, event("earlier"), window(time.Hour))), Recorded: true},
	} {
		c.Node, c.Now = Node{Instance: "i-1", Ready: true}, t0.Add(time.Second)
		c.Notice = withdrawal
		j := Judge(c)
		if j.Verdict == Accepted || !j.Early.Has(announced) {
			t.Errorf("%s: verdict %s, remembers %v; want what was withdrawn", name, j.Verdict, j.Early)
		}
		c.Past = j.Early
		if again := Judge(c); len(again.Early) != 0 {
			t.Errorf("%s: a second time it remembers %v, want nothing new", name, again.Early)
		}
		c.Notice = announced
		if j := Judge(c); j.Verdict != Duplicate {
			t.Errorf("%s: the announcement after its withdrawal is %s, want %s", name, j.Verdict, Duplicate)
		}
		c.Notice, c.Past = withdrawal, nil
		c.Notice.Source = IMDS
		if j := Judge(c); len(j.Early) != 0 {
			t.Errorf("%s: remembers %v from the metadata service, which keeps order", name, j.Early)
		}
	}
}

// Every rule has its case, in the order of the rules; no earlier rule applies to it.
func TestJudge(t *testing.T) {
	on := func(n Notice, change ...func(*Record)) *Record {
		r := NewRecord(n)
		for _, f := range change {
			f(&r)
		}
		return &r
	}
	phase := func(p Phase) func(*Record) { return func(r *Record) { r.Phase = p } }
	spot := at(SpotInterruption, 0)
	rehearsal := at(SpotInterruption, 0, event("rehearsal-1"), func(n *Notice) { n.Source = Rehearsal })
	reboot := at(ScheduledEvent, 0, does(ActionReboot), window(24*time.Hour))
	withdrawn := func(n *Notice) { n.Withdrawn = true }
	ready := Node{Instance: "i-1", Ready: true}
	for name, tt := range map[string]struct {
		node   Node
		rules  Rules
		record *Record
		past   Past
		notice Notice
		now    time.Duration // after t0

		want   Verdict
		phase  Phase
		reason string // a part of it
	}{
		"of another instance":                {Node{Instance: "i-2", Ready: true}, Rules{}, nil, nil, spot, 0, Unknown, "", "i-2"},
		"opted out":                          {ready, Rules{Unmanaged: "labelled"}, nil, nil, spot, 0, Unmanaged, "", "labelled"},
		"opted out while it drains":          {ready, Rules{Unmanaged: "labelled"}, on(at(RebalanceRecommendation, 0), phase(Replacing)), nil, at(SpotInterruption, time.Minute, event("event-2")), time.Minute, Accepted, Replacing, "adds"},
		"ignored by policy":                  {ready, Rules{Rebalance: RebalanceIgnore}, nil, nil, at(RebalanceRecommendation, 0), 0, Ignored, "", "policy"},
		"withdrawn, never announced":         {ready, Rules{}, nil, nil, at(ScheduledEvent, 0, withdrawn), 0, Ignored, "", "not known"},
		"withdrawn, another stands":          {ready, Rules{}, on(spot), nil, at(ScheduledEvent, 0, withdrawn), 0, Duplicate, "", "does not stand"},
		"withdrawn":                          {ready, Rules{}, on(reboot, phase(Waiting)), nil, at(ScheduledEvent, 0, withdrawn), 0, Accepted, Waiting, "takes back"},
		"cancelled before":                   {ready, Rules{}, nil, PastOfCanceled(*on(spot), t0.Add(time.Second)), spot, 0, Duplicate, "", "cancelled"},
		"cancelled before, under another id": {ready, Rules{}, nil, PastOfCanceled(*on(spot), t0.Add(time.Second)), at(SpotInterruption, 0, event("event-2"), window(time.Minute)), time.Second, Duplicate, "", "cancelled"},
		"announced after a cancellation":     {ready, Rules{}, nil, PastOfCanceled(*on(spot), t0.Add(time.Second)), at(SpotInterruption, 2*time.Second, event("event-2")), 2 * time.Second, Accepted, Noticed, "new"},
		"a recommendation that moves":        {ready, Rules{Rebalance: RebalanceReplace}, nil, PastOfCanceled(*on(at(RebalanceRecommendation, 0)), t0.Add(time.Second)), at(RebalanceRecommendation, 5*time.Minute, event("event-2")), 5 * time.Minute, Duplicate, "", "cancelled"},
		"a recommendation much later":        {ready, Rules{Rebalance: RebalanceReplace}, nil, PastOfCanceled(*on(at(RebalanceRecommendation, 0)), t0.Add(time.Second)), at(RebalanceRecommendation, time.Hour, event("event-2")), time.Hour, Accepted, Waiting, "new"},
		"hours late":                         {ready, Rules{}, nil, nil, spot, time.Hour, Stale, "", "past"},
		"hours late, node dead":              {Node{}, Rules{}, nil, nil, spot, time.Hour, Accepted, Noticed, "new"},
		"hours late, hibernating":            {ready, Rules{}, nil, nil, at(SpotInterruption, 0, does(ActionHibernate)), time.Hour, Stale, "", "past"},
		"state of an earlier run": {Node{Ready: true, ReadySince: t0.Add(time.Minute)}, Rules{}, nil, nil,
			at(StateChange, 0, does(ActionStopping)), 2 * time.Minute, Stale, "", "since"},
		"state of a node that is deleted":     {Node{Deleting: true}, Rules{}, nil, nil, at(StateChange, 0, does(ActionShuttingDown)), 0, Ignored, "", "already"},
		"state of a node that is scaled down": {Node{ScalingDown: true}, Rules{}, nil, nil, at(StateChange, 0, does(ActionShuttingDown)), 0, Ignored, "", "already"},
		"while being undone":                  {ready, Rules{}, on(reboot, func(r *Record) { r.Canceled = true }), nil, spot, 0, Accepted, Noticed, "new"},
		"while being undone, the same again":  {ready, Rules{}, on(reboot, func(r *Record) { r.Canceled = true }), nil, reboot, 0, Duplicate, "", "taken back"},
		"the next run of what was rebooted": {Node{Boot: "boot-2"}, Rules{}, on(at(ScheduledEvent, 0, does(ActionReboot), window(time.Hour)), phase(Drained), func(r *Record) { r.Boot = "boot-1" }), nil,
			at(SpotInterruption, 2*time.Hour, event("event-2")), 2 * time.Hour, Accepted, Noticed, "new"},
		"the first":                     {ready, Rules{}, nil, nil, spot, 0, Accepted, Noticed, "new"},
		"the next of a node that lives": {ready, Rules{}, on(spot, phase(Released)), nil, at(SpotInterruption, time.Hour, event("event-2")), time.Hour, Accepted, Noticed, "new"},
		"recommended, in line":          {ready, Rules{Rebalance: RebalanceReplace}, nil, nil, at(RebalanceRecommendation, 0), 0, Accepted, Waiting, "new"},
		"recommended, cordoned only":    {ready, Rules{Rebalance: RebalanceCordon}, nil, nil, at(RebalanceRecommendation, 0), 0, Accepted, Noticed, "new"},
		"scheduled, far ahead":          {ready, Rules{ScheduledLead: time.Hour}, nil, nil, reboot, 0, Accepted, Waiting, "new"},
		"scheduled, within the lead":    {ready, Rules{ScheduledLead: 48 * time.Hour}, nil, nil, reboot, 0, Accepted, Noticed, "new"},
		"nothing new":                   {ready, Rules{}, on(spot), nil, spot, 0, Duplicate, "", "nothing new"},
		"drained, and ends as expected": {Node{}, Rules{}, on(spot, phase(Released)), nil, at(StateChange, time.Minute, event("event-2"), does(ActionShuttingDown)), time.Minute, Duplicate, "", "as expected"},
		"drained, gone for good":        {Node{}, Rules{}, on(spot, phase(Released)), nil, at(StateChange, time.Minute, event("event-2"), does(ActionTerminated)), time.Minute, Accepted, Released, "adds"},
		"put off":                       {ready, Rules{ScheduledLead: time.Hour}, on(at(ScheduledEvent, 0, does(ActionReboot), window(30*time.Minute)), phase(Draining)), nil, at(ScheduledEvent, time.Minute, does(ActionReboot), window(72*time.Hour)), time.Minute, Accepted, Waiting, "adds"},
		"a notice while it drains":      {ready, Rules{}, on(at(RebalanceRecommendation, 0), phase(Replacing)), nil, at(SpotInterruption, time.Minute, event("event-2")), time.Minute, Accepted, Replacing, "adds"},
		"a notice while it waits":       {ready, Rules{Rebalance: RebalanceReplace}, on(at(RebalanceRecommendation, 0), phase(Waiting)), nil, at(SpotInterruption, time.Minute, event("event-2")), time.Minute, Accepted, Noticed, "adds"},
		"a notice of what was cordoned": {ready, Rules{}, on(at(RebalanceRecommendation, 0), phase(Drained)), nil, at(SpotInterruption, time.Minute, event("event-2")), time.Minute, Accepted, Noticed, "adds"},

		"a rehearsal":                           {ready, Rules{}, nil, nil, rehearsal, 0, Accepted, Noticed, "new"},
		"a rehearsal after a cancellation":      {ready, Rules{}, nil, PastOfCanceled(*on(spot), t0.Add(-time.Second)), rehearsal, 0, Accepted, Noticed, "new"},
		"a rehearsal of what is interrupted":    {ready, Rules{}, on(spot), nil, rehearsal, 0, Ignored, "", "already"},
		"a rehearsal of what is rehearsed":      {ready, Rules{}, on(rehearsal), nil, rehearsal, 0, Ignored, "", "already"},
		"a rehearsal of what is unmanaged":      {ready, Rules{Unmanaged: "labelled"}, nil, nil, rehearsal, 0, Unmanaged, "", "labelled"},
		"in earnest":                            {ready, Rules{}, on(rehearsal), nil, spot, 0, Accepted, Noticed, "ends a rehearsal"},
		"in earnest, while it drains":           {ready, Rules{}, on(rehearsal, phase(Draining)), nil, spot, 0, Accepted, Draining, "ends a rehearsal"},
		"in earnest, when it has drained":       {ready, Rules{}, on(rehearsal, phase(Drained)), nil, spot, 0, Accepted, Noticed, "ends a rehearsal"},
		"in earnest, when it was released":      {ready, Rules{}, on(rehearsal, phase(Released)), nil, at(StateChange, 0, does(ActionShuttingDown)), 0, Duplicate, "", "as expected"},
		"in earnest, after a cancellation":      {ready, Rules{}, nil, PastOfCanceled(*on(rehearsal), t0.Add(time.Second)), spot, time.Second, Accepted, Noticed, "new"},
		"recommended in earnest":                {ready, Rules{Rebalance: RebalanceReplace}, on(rehearsal, phase(Draining)), nil, at(RebalanceRecommendation, 0), 0, Accepted, Waiting, "ends a rehearsal"},
		"recommended in earnest, cordoned":      {ready, Rules{Rebalance: RebalanceCordon}, on(rehearsal, phase(Draining)), nil, at(RebalanceRecommendation, 0), 0, Accepted, Waiting, "ends a rehearsal"},
		"scheduled in earnest, within the lead": {ready, Rules{ScheduledLead: 48 * time.Hour}, on(rehearsal, phase(Draining)), nil, reboot, 0, Accepted, Draining, "ends a rehearsal"},
	} {
		c := Case{Node: tt.node, Rules: tt.rules, Past: tt.past, Notice: tt.notice, Now: t0.Add(tt.now)}
		if tt.record != nil {
			c.Record, c.Recorded = *tt.record, true
		}
		j := Judge(c)
		if j.Verdict != tt.want || !strings.Contains(j.Reason, tt.reason) || j.Verdict == Accepted && j.Record.Phase != tt.phase {
			t.Errorf("%s: %s because %q, phase %s; want %s because of %q, phase %s", name, j.Verdict, j.Reason, j.Record.Phase, tt.want, tt.reason, tt.phase)
		}
	}
}

// Judging changes nothing that it is given and answers the same question the same way. A notice
// that it has just recorded is not news.
func TestJudgeIsPure(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 5000 {
		c := Case{
			Notice: someNotice(r), Now: t0.Add(time.Duration(r.IntN(300)) * time.Second),
			Node:  Node{Instance: "i", Ready: r.IntN(2) == 0, Deleting: r.IntN(4) == 0, ScalingDown: r.IntN(4) == 0},
			Rules: Rules{Rebalance: RebalancePolicies()[r.IntN(3)], ScheduledLead: time.Duration(r.IntN(100)) * time.Second},
		}
		if r.IntN(3) > 0 {
			c.Record, c.Recorded = NewRecord(someNotice(r)), true
			c.Record.Phase = Phases()[r.IntN(len(Phases()))]
			c.Record.Canceled = r.IntN(5) == 0
		}
		before := c.Record.String()
		j, again := Judge(c), Judge(c)
		if !reflect.DeepEqual(j, again) || c.Record.String() != before {
			t.Fatalf("%+v\n%+v, and then %+v", c, j, again)
		}
		if j.Reason == "" || j.Verdict == "" {
			t.Fatalf("%+v: %+v has no reason", c, j)
		}
		if j.Verdict != Accepted || j.Record.Canceled {
			continue
		}
		c.Record, c.Recorded = j.Record, true
		if next := Judge(c); next.Verdict == Accepted {
			t.Fatalf("%+v\nrecorded, and the same notice is news again: %+v", c, next)
		}
	}
}

// A notice that could only be recorded late has its drain begin then: until then the scheduler has put pods on the
// node. A recommendation has its own beginning.
func TestRecordedLate(t *testing.T) {
	for _, tt := range []struct {
		kind Kind
		late time.Duration
		want time.Duration // after t0, of Since
	}{
		{SpotInterruption, 0, 0},
		{SpotInterruption, time.Second, 0},
		{SpotInterruption, 40 * time.Second, 40 * time.Second},
		{RebalanceRecommendation, 40 * time.Second, 0},
	} {
		j := Judge(Case{
			Node:   Node{Instance: "i-1", Ready: true},
			Rules:  Rules{Rebalance: RebalanceCordon},
			Notice: at(tt.kind, 0),
			Now:    t0.Add(tt.late),
		})
		if got := j.Record.Since().Sub(t0); j.Verdict != Accepted || j.Record.Phase != Noticed || got != tt.want {
			t.Errorf("%s recorded %s late: %s, %s, since %s, want %s", tt.kind, tt.late, j.Verdict, j.Record.Phase, got, tt.want)
		}
	}
}
