package interruption

import (
	"testing"
	"time"
)

// A notice for real takes everything over that the drain has got so far, and leaves nothing of
// the rehearsal.
func TestNoticeEndsARehearsal(t *testing.T) {
	made := NewRecord(at(SpotInterruption, 0, event("rehearsal-1"), window(10*time.Minute), func(n *Notice) { n.Source, n.Release = Rehearsal, true }))
	made.Phase, made.Ours = Draining, []string{OursCordon, OursTaint}
	made.Replacement, made.Pods = &Replacement{Backend: "karpenter", Name: "claim", State: "Launched"}, &Pods{Total: 3}
	notice := at(SpotInterruption, time.Minute)
	j := Judge(Case{Node: Node{Instance: "i-1", Ready: true}, Record: made, Recorded: true, Notice: notice, Now: notice.Received})

	want := NewRecord(notice)
	want.Phase, want.Ours, want.Replacement, want.Pods = made.Phase, made.Ours, made.Replacement, made.Pods
	if j.Record.String() != want.String() {
		t.Errorf("%s\nwant %s", j.Record, want)
	}

	made.Phase = Drained // the next drain counts its own pods
	made.Ended = notice.Received
	if j := Judge(Case{Record: made, Recorded: true, Notice: notice, Now: notice.Received}); j.Record.Pods != nil || !j.Record.Ended.IsZero() || j.Record.Replacement == nil {
		t.Errorf("%s", j.Record)
	}
}

// What was rehearsed is nothing to remember, however it ends: EC2 could announce the same.
func TestRehearsalsAreNotPast(t *testing.T) {
	for _, kind := range Kinds() {
		made := NewRecord(at(kind, 0, window(time.Minute), func(n *Notice) { n.Source = Rehearsal }))
		dropped, _ := made.DropRecommendation(t0)
		for _, past := range []Past{PastOf(made), PastOfCanceled(made, t0), dropped.Past} {
			if len(past) > 0 {
				t.Errorf("%s: %s is remembered", kind, past)
			}
		}
	}
}
