package interruption

import (
	"testing"
	"time"
)

// An announcement that is read again long after the drain, by a process that does not know
// since when it has been there, is not about a later life of the node; another one is.
func TestSameAnnouncementIsNoLaterLife(t *testing.T) {
	terminating := Notice{Kind: InstanceTerminating, Source: IMDS, EventID: "imds/i/instance-terminating/Terminated", Noticed: t0, Received: t0}
	event := Notice{Kind: ScheduledEvent, Source: IMDS, EventID: "imds/i/scheduled-event/e", Noticed: t0, Received: t0, Deadline: t0.Add(time.Minute)}
	rec, _ := NewRecord(terminating).Merge(event)
	rec.Phase = Released
	for _, n := range []Notice{terminating, event} {
		n.Noticed = t0.Add(time.Hour)
		if n.Supersedes(rec) {
			t.Errorf("%s supersedes the record that has it: %s", n.EventID, rec)
		}
		n.EventID += "-2"
		if !n.Supersedes(rec) {
			t.Errorf("%s does not supersede %s", n.EventID, rec)
		}
	}
}

// Both sources tell of a hibernation, each a moment after it has begun: that is one, until
// the instance is awake. What comes then is about its next run.
func TestHibernationIsToldTwice(t *testing.T) {
	sleep := Notice{Kind: SpotInterruption, Source: IMDS, EventID: "imds", Action: ActionHibernate, Noticed: t0, Received: t0, Deadline: t0}
	rec := NewRecord(sleep)
	rec.Phase, rec.Boot = Drained, "boot-1"
	again := sleep
	again.Source, again.EventID = Queue, "queue"
	again.Noticed, again.Received, again.Deadline = t0.Add(time.Second), t0.Add(2*time.Second), t0.Add(2*time.Second)
	if _, changed := rec.Merge(again); changed || again.Supersedes(rec) || again.OfNextRun(rec, "boot-1", t0.Add(-time.Hour)) {
		t.Errorf("%+v is news to %s", again, rec)
	}
	again.Noticed = t0.Add(9 * time.Hour)
	if woke := t0.Add(8 * time.Hour); !again.OfNextRun(rec, "boot-1", woke) || sleep.OfNextRun(rec, "boot-1", woke) {
		t.Errorf("%+v is not told from what %s has", again, rec)
	}
}
