package handler

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// rehearse writes the record as the command does, past the handler.
func rehearse(t *testing.T, f *fakeNodes, change ...func(*interruption.Notice)) {
	t.Helper()
	n := notice(interruption.SpotInterruption, append(change, func(n *interruption.Notice) {
		n.Source, n.EventID = interruption.Rehearsal, "rehearsal-1"
	})...)
	node, _ := f.raw(t)
	j := interruption.Judge(nodes.Case(node, n, (&rules{rebalance: interruption.RebalanceReplace}).of, time.Now()))
	patch := marks.Accept(node, j.Record)
	if _, err := f.Patch(t.Context(), node.Name, patch.Type, patch.Data, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// restored checks that nothing is left of the rehearsal.
func restored(t *testing.T, f *fakeNodes) {
	t.Helper()
	wantMarks(t, f, false)
	if node, has := f.raw(t); has || node.Labels[interruption.ExcludeFromLoadBalancers] != "" || node.Annotations[interruption.PastAnnotation] != "" {
		t.Errorf("labels %v, annotations %v; want the node as it was", node.Labels, node.Annotations)
	}
}

// The drain is as for real, and its result stands for a moment. Then the node is back in
// service, and not handed back.
func TestRehearsalEndsWithTheNodeInService(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		notified := &shownNews{}
		h.opts.Events = notified
		cancels(h, func() bool { return true })
		rehearse(t, f)
		s.state = provisioner.StateReady
		untilStable(t, f, h)
		wantMarks(t, f, true)
		s.left = 0
		if again := untilStable(t, f, h); again <= 0 || again > shownFor {
			t.Fatalf("again in %s, want within %s", again, shownFor)
		}
		if rec := wantPhase(t, f, interruption.Drained); rec.Pods.Graceful != 3 || rec.Ended.IsZero() {
			t.Fatalf("record %s, want the result", rec)
		}
		wantMarks(t, f, true)
		time.Sleep(shownFor)
		untilStable(t, f, h)
		restored(t, f)
		if s.released != 0 || s.finished != 1 {
			t.Errorf("released %d times, finished %d times; want it finished once", s.released, s.finished)
		}
		if counted := drains(t, h); counted["rehearsal completed"] != 1 || len(counted) != 1 {
			t.Errorf("counted %v, want one rehearsal", counted)
		}
		if want := "noticed spot-interruption Drained"; len(notified.shown) != 2 || notified.shown[0]+" "+notified.shown[1] != want {
			t.Errorf("notified %q, want %q", notified.shown, want)
		}
	})
}

// However it ends: pods are left at the deadline, or nothing is ever drained.
func TestRehearsalAlwaysEnds(t *testing.T) {
	for name, cordonOnly := range map[string]bool{"pods are left": false, "cordon only": true} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				h.opts.CordonOnly = cordonOnly
				cancels(h, func() bool { return true })
				rehearse(t, f)
				untilStable(t, f, h)
				time.Sleep(time.Until(f.deadline(t)) - 5*time.Second)
				untilStable(t, f, h)
				if !cordonOnly {
					wantPhase(t, f, interruption.DeadlineReached)
					if counted := counts(t, h.metrics.pods); counted["rehearsal left"] != 3 || len(counted) != 1 {
						t.Errorf("counted %v, want three pods of a rehearsal", counted)
					}
				}
				time.Sleep(shownFor)
				untilStable(t, f, h)
				restored(t, f)
			})
		})
	}
}

func (f *fakeNodes) deadline(t *testing.T) time.Time {
	t.Helper()
	_, rec := f.now(t)
	return rec.Deadline
}

func TestRehearsalReleases(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		rehearse(t, f, func(n *interruption.Notice) { n.Release = true })
		s.state, s.left = provisioner.StateReady, 0
		untilStable(t, f, h)
		wantPhase(t, f, interruption.Released)
		if s.released != 1 {
			t.Errorf("released %d times, want once", s.released)
		}
	})
}

// EC2 takes the node in the very moment in which the rehearsal's end is written: that end is not
// the interruption's.
func TestNoticeWhileARehearsalEnds(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		rehearse(t, f)
		s.state = provisioner.StateReady
		untilStable(t, f, h)
		time.Sleep(time.Until(f.deadline(t)) - 5*time.Second)
		real := notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.EventID = "event-2" })
		f.beforePatch = func() { accept(t, h, real) }
		if again, err := step(t, h); err != nil || again != changedCheck {
			t.Fatalf("again in %s, %v; want to wait for the watch, as the record is not as it was", again, err)
		}
		untilStable(t, f, h)
		if rec := wantPhase(t, f, interruption.Draining); rec.Rehearsed() || !rec.Deadline.Equal(real.Deadline) || s.released != 0 {
			t.Fatalf("record %s, released %d times; want the notice's drain", rec, s.released)
		}
		s.left = 0
		untilStable(t, f, h)
		wantPhase(t, f, interruption.Released)
	})
}

// A recommendation has no hurry: first the rehearsal is undone.
func TestRecommendationDuringARehearsal(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		off := 0
		cancels(h, func() bool { off++; return off > 1 })
		rehearse(t, f)
		untilStable(t, f, h)
		accept(t, h, notice(interruption.RebalanceRecommendation))
		if again, err := step(t, h); err != nil || again != time.Second || off != 1 {
			t.Fatalf("again in %s, %v; the rehearsal was cancelled %d times, want once", again, err, off)
		}
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		wantMarks(t, f, false)
		if rec := wantPhase(t, f, interruption.Waiting); rec.Kind != interruption.RebalanceRecommendation || rec.Rehearsed() {
			t.Errorf("record %s", rec)
		}
		if counted := drains(t, h); counted["rehearsal canceled"]+counted["rebalance-recommendation canceled"] != 1 {
			t.Errorf("counted %v", counted)
		}
	})
}
