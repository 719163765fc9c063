package handler

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// The instance comes back: its node is kept for it, and undone when it runs again.
func TestRebootKeepsTheNode(t *testing.T) {
	for _, kind := range []interruption.Notice{
		{Kind: interruption.ScheduledEvent, Action: interruption.ActionReboot},
		{Kind: interruption.ScheduledEvent, Action: interruption.ActionMaintenance},
		{Kind: interruption.ScheduledEvent, Action: interruption.ActionStop},
		{Kind: interruption.SpotInterruption, Action: interruption.ActionStop},
		{Kind: interruption.StateChange, Action: interruption.ActionStopping},
	} {
		t.Run(string(kind.Kind)+" "+kind.Action, func(t *testing.T) {
			scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				n := notice(kind.Kind, func(n *interruption.Notice) { n.Action, n.Deadline = kind.Action, n.Noticed.Add(time.Minute) })
				accept(t, h, n)
				s.left = 0
				untilStable(t, f, h)
				rec := wantPhase(t, f, interruption.Drained)
				if rec.Boot != "boot-1" || s.released != 1 {
					t.Fatalf("record %s, the provisioner released %d times", rec, s.released)
				}
				ready := func(status corev1.ConditionStatus, boot string) {
					f.change(func(n *corev1.Node) {
						n.Status.Conditions[0].Status, n.Status.NodeInfo.BootID = status, boot
					})
					untilStable(t, f, h)
				}
				ready(corev1.ConditionUnknown, "boot-1")
				ready(corev1.ConditionTrue, "boot-1") // the network was away
				ready(corev1.ConditionFalse, "boot-2")
				wantMarks(t, f, true)
				if s.released != 1 {
					t.Errorf("the provisioner released %d times", s.released)
				}
				ready(corev1.ConditionTrue, "boot-2")
				wantNoRecord(t, f)
				if diff := cmp.Diff(map[string]float64{string(n.Kind) + " completed": 1}, drains(t, h)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// Of two reboots one is past: the other one's time has not come.
func TestRebootLeavesTheNextEvent(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		next := scheduled("next", 48*time.Hour, interruption.ActionReboot)
		first := scheduled("first", time.Minute, interruption.ActionReboot)
		accept(t, h, next)
		accept(t, h, first)
		untilStable(t, f, h)
		f.change(func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" }) // in the middle of the drain
		again := untilStable(t, f, h)
		wantMarks(t, f, false)
		if rec := wantPhase(t, f, interruption.Waiting); rec.Event != "next" || again != time.Until(next.Deadline.Add(-lead)) {
			t.Fatalf("record %s, looks again in %s", rec, again)
		}
		if v := accept(t, h, first); v != interruption.Duplicate { // the metadata service still announces it
			t.Errorf("verdict %s", v)
		}
		wantPhase(t, f, interruption.Waiting)
	})
}

// sleepsFor plays a kubelet that falls silent for d, and is then Ready again with the same boot
// id.
func sleepsFor(t *testing.T, f *fakeNodes, h *Handler, d time.Duration) {
	t.Helper()
	f.ready(corev1.ConditionUnknown)
	untilStable(t, f, h)
	time.Sleep(d)
	f.change(func(n *corev1.Node) {
		n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = corev1.ConditionTrue, metav1.Now()
	})
	untilStable(t, f, h)
}

// A hibernated instance wakes up with the same boot id. The sign that it is back is that its
// Node is Ready again, later than any hiccup of the network would explain.
func TestHibernatedNodeIsKeptAndUndone(t *testing.T) {
	for name, said := range map[string][]interruption.Notice{
		"a spot notice":      {{Kind: interruption.SpotInterruption, Action: interruption.ActionHibernate}},
		"somebody's command": {{Kind: interruption.StateChange, Action: interruption.ActionStopping}, {Kind: interruption.StateChange, Action: interruption.ActionStopped}},
		"a spot notice, and its states": {{Kind: interruption.SpotInterruption, Action: interruption.ActionHibernate},
			{Kind: interruption.StateChange, Action: interruption.ActionStopping}, {Kind: interruption.StateChange, Action: interruption.ActionStopped}},
	} {
		t.Run(name, func(t *testing.T) {
			scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				s.left = 0
				for i, n := range said {
					n.EventID, n.Source, n.InstanceID = fmt.Sprint("event-", i), interruption.Queue, instance
					n.Noticed, n.Received, n.Deadline = time.Now(), time.Now(), time.Now()
					accept(t, h, n)
					untilStable(t, f, h)
				}
				wantPhase(t, f, interruption.Drained)
				sleepsFor(t, f, h, 10*time.Second) // it had not gone to sleep yet
				wantPhase(t, f, interruption.Drained)
				wantMarks(t, f, true)
				sleepsFor(t, f, h, 8*time.Hour)
				wantNoRecord(t, f)
				late := said[0] // the message comes again, about what is over
				late.EventID, late.Source, late.InstanceID = "event-0", interruption.Queue, instance
				late.Noticed, late.Received, late.Deadline = time.Now().Add(-8*time.Hour), time.Now(), time.Now()
				if v := accept(t, h, late); v != interruption.Stale {
					t.Errorf("verdict %s of a message that is hours old", v)
				}
				wantNoRecord(t, f)
			})
		})
	}
}

// A stop is announced ahead of its time: a kubelet that is away for a while has not stopped
// yet, and only another boot id says that the instance is back.
func TestStopIsNoSleep(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.Action = interruption.ActionStop }))
		s.left = 0
		untilStable(t, f, h)
		sleepsFor(t, f, h, 90*time.Second)
		wantPhase(t, f, interruption.Drained)
		wantMarks(t, f, true)
	})
}

// The instance is back, and is interrupted again before its Node is Ready: that is another
// interruption, and is not undone with the last one.
func TestNoticeOfTheNextRun(t *testing.T) {
	for name, later := range map[string]bool{"alone": false, "with an event that waits": true} {
		t.Run(name, func(t *testing.T) {
			scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				stop := func(id string) interruption.Notice {
					return notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.EventID, n.Action = id, interruption.ActionStop })
				}
				accept(t, h, stop("first"))
				if later {
					accept(t, h, scheduled("event", 240*time.Hour, interruption.ActionReboot))
				}
				s.left = 0
				untilStable(t, f, h)
				wantPhase(t, f, interruption.Drained)
				time.Sleep(time.Hour)
				f.change(func(n *corev1.Node) {
					n.Status.Conditions[0].Status, n.Status.NodeInfo.BootID = corev1.ConditionFalse, "boot-2"
				})
				untilStable(t, f, h)
				wantMarks(t, f, true)

				s.left = 3
				second := stop("second")
				if v := accept(t, h, second); v != interruption.Accepted {
					t.Fatalf("verdict %s", v)
				}
				f.ready(corev1.ConditionTrue)
				untilStable(t, f, h)
				wantMarks(t, f, true)
				rec := wantPhase(t, f, interruption.Replacing)
				if rec.Event != "second" || rec.Boot != "boot-2" || !rec.Deadline.Equal(second.Deadline) {
					t.Errorf("record %s", rec)
				}
				s.left = 0
				untilStable(t, f, h)
				wantPhase(t, f, interruption.Drained)
				f.change(func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-3" })
				untilStable(t, f, h)
				if !later {
					wantNoRecord(t, f)
					return
				}
				wantMarks(t, f, false)
				if rec := wantPhase(t, f, interruption.Waiting); rec.Event != "event" {
					t.Errorf("record %s, want the event that waits", rec)
				}
			})
		})
	}
}
