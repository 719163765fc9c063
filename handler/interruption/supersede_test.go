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
