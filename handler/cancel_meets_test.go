package handler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// cancelled is a story of a notice that somebody cancels while an eviction is under way, so that it cannot be
// undone yet, when something else is announced. What comes of the Node follows, once it has been undone.
func cancelled(t *testing.T, notices func() (before []interruption.Notice, meanwhile interruption.Notice), want interruption.Verdict, f func(*corev1.Node, interruption.Record, bool)) {
	t.Helper()
	story(t, func(t *testing.T, s *script, nodes *fakeNodes, h *Handler) {
		done := false
		before, meanwhile := notices()
		cancels(h, func() bool { return done })
		for _, n := range before {
			accept(t, h, n)
		}
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		nodes.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if v := accept(t, h, meanwhile); v != want {
			t.Errorf("the verdict is %s, want %s", v, want)
		}
		done = true
		for range 4 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		node, has := nodes.raw(t)
		rec, _ := interruption.ParseRecord(node.Annotations[interruption.Annotation])
		if node.Annotations[interruption.CancelAnnotation] != "" {
			t.Error("the cancellation is still there")
		}
		f(node, rec, has)
	})
}

func rebootInAWeek() interruption.Notice {
	return notice(interruption.ScheduledEvent, func(n *interruption.Notice) {
		n.EventID, n.Action, n.Deadline = "reboot", interruption.ActionReboot, n.Received.Add(7*24*time.Hour)
	})
}

func TestCancelMeetsTheOtherSource(t *testing.T) {
	cancelled(t, func() ([]interruption.Notice, interruption.Notice) {
		first := notice(interruption.SpotInterruption)
		other := first
		other.Source, other.EventID, other.Deadline = interruption.IMDS, "imds/x", first.Deadline.Add(-3*time.Second)
		return []interruption.Notice{first}, other
	}, interruption.Duplicate, func(node *corev1.Node, rec interruption.Record, has bool) {
		if has || node.Spec.Unschedulable {
			t.Errorf("record %s, cordon %v; want the node as it was", rec, node.Spec.Unschedulable)
		}
	})
}

// Its window is a week away, and it is not cancelled.
func TestCancelMeetsAScheduledEvent(t *testing.T) {
	cancelled(t, func() ([]interruption.Notice, interruption.Notice) {
		return []interruption.Notice{notice(interruption.SpotInterruption)}, rebootInAWeek()
	}, interruption.Accepted, func(node *corev1.Node, rec interruption.Record, has bool) {
		if !has || rec.Kind != interruption.ScheduledEvent || rec.Phase != interruption.Waiting || len(rec.Announced) > 0 || node.Spec.Unschedulable {
			t.Errorf("record %s, cordon %v; want that only the reboot is recorded, and waits", rec, node.Spec.Unschedulable)
		}
	})
}

// One of two events is withdrawn after somebody has cancelled both.
func TestCancelMeetsAWithdrawal(t *testing.T) {
	cancelled(t, func() ([]interruption.Notice, interruption.Notice) {
		withdrawn := rebootInAWeek()
		withdrawn.Withdrawn = true
		spot := notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.Action = interruption.ActionStop }) // the reboot stands alongside
		return []interruption.Notice{spot, rebootInAWeek()}, withdrawn
	}, interruption.Accepted, func(node *corev1.Node, rec interruption.Record, has bool) {
		if has || node.Spec.Unschedulable {
			t.Errorf("record %s, cordon %v; want the node as it was", rec, node.Spec.Unschedulable)
		}
	})
}

// The recommendation was cancelled, the interruption was not. It has use for the replacement.
func TestCancelMeetsAnInterruption(t *testing.T) {
	var recommended interruption.Notice
	cancelled(t, func() ([]interruption.Notice, interruption.Notice) {
		recommended = notice(interruption.RebalanceRecommendation, func(n *interruption.Notice) { n.EventID = "recommended" })
		return []interruption.Notice{recommended}, notice(interruption.SpotInterruption)
	}, interruption.Accepted, func(node *corev1.Node, rec interruption.Record, has bool) {
		if !has || rec.Kind != interruption.SpotInterruption || !node.Spec.Unschedulable || rec.Replacement == nil {
			t.Errorf("record %s, cordon %v; want the node drained for the interruption", rec, node.Spec.Unschedulable)
		}
		if !interruption.ParsePast(node.Annotations[interruption.PastAnnotation]).Has(recommended) && !interruption.Past(rec.Past).Has(recommended) {
			t.Error("the recommendation is not past")
		}
	})
}

// A cancellation without anything to cancel does not cancel what is announced later, even if that waits.
func TestCancelBeforeANotice(t *testing.T) {
	for _, kind := range []interruption.Kind{interruption.ScheduledEvent, interruption.RebalanceRecommendation, interruption.SpotInterruption} {
		t.Run(string(kind), func(t *testing.T) {
			story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				cancels(h, func() bool { return true })
				f.change(func(n *corev1.Node) { n.Annotations = map[string]string{interruption.CancelAnnotation: "true"} })
				n := notice(kind)
				n.Deadline = n.Received.Add(7 * 24 * time.Hour)
				accept(t, h, n)
				for range 3 {
					if _, err := step(t, h); err != nil {
						t.Fatal(err)
					}
				}
				if _, has := f.raw(t); !has {
					t.Error("it was cancelled")
				}
			})
		})
	}
}

// A cancelled recommendation stands again before the node has been restored. Until then the drainer answers that the node
// is cancelled, and names no pods. That's no reason to cordon it.
func TestRecommendationThatIsNoLongerCancelled(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.state = provisioner.StateRequested
		s.h.opts.Drainer.(*fakeDrainer).CancelFunc = func(string) *plan.Canceled { return nil } // pods are going back
		s.accept(t)
		s.steps(t, 2)
		s.nodes.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		s.steps(t, 1)
		s.nodes.change(func(n *corev1.Node) { delete(n.Annotations, interruption.CancelAnnotation) })
		s.steps(t, 2)
		if node, has := s.nodes.raw(t); !has || node.Spec.Unschedulable {
			t.Errorf("record %v, cordon %v, and the replacement is still Requested", has, node.Spec.Unschedulable)
		}
		s.state = provisioner.StateReady
		s.steps(t, 2)
		if node, _ := s.nodes.raw(t); !node.Spec.Unschedulable {
			t.Error("not cordoned, and the replacement is Ready")
		}
	})
}
