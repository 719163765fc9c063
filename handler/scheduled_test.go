package handler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

const lead = 30 * time.Minute

// scheduled is an event whose window begins after the time in.
func scheduled(id string, in time.Duration, action string) interruption.Notice {
	return notice(interruption.ScheduledEvent, func(n *interruption.Notice) {
		n.EventID, n.Action, n.Deadline = id, action, n.Noticed.Add(in)
	})
}

func withdrawn(n interruption.Notice) interruption.Notice {
	n.Withdrawn, n.Noticed, n.Received = true, time.Now(), time.Now()
	return n
}

// scheduledStory is a story with a lead, and with a drain that can be cancelled.
func scheduledStory(t *testing.T, f func(t *testing.T, s *script, nodes *fakeNodes, h *Handler)) {
	story(t, func(t *testing.T, s *script, f0 *fakeNodes, h *Handler) {
		h.opts.Rules = (&rules{rebalance: interruption.RebalanceReplace, lead: lead}).of
		cancels(h, func() bool { return true })
		f0.change(func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-1" })
		f(t, s, f0, h)
	})
}

// untilStable reconciles until nothing changes by itself, and returns when to look again.
func untilStable(t *testing.T, f *fakeNodes, h *Handler) time.Duration {
	t.Helper()
	for range 10 {
		before := f.patches
		again, err := step(t, h)
		if err != nil {
			t.Fatal(err)
		}
		if f.patches == before {
			return again
		}
	}
	t.Fatal("reconciled 10 times, and each time the node was changed")
	return 0
}

func wantMarks(t *testing.T, f *fakeNodes, want bool) {
	t.Helper()
	node, has := f.raw(t)
	if node.Spec.Unschedulable != want || hasTaintOf(node, interruption.TaintKey) != want {
		t.Fatalf("cordon %v, taints %v, record %v; want marked %v", node.Spec.Unschedulable, node.Spec.Taints, has, want)
	}
}

func hasTaintOf(node *corev1.Node, key string) bool {
	for _, t := range node.Spec.Taints {
		if t.Key == key {
			return true
		}
	}
	return false
}

func wantNoRecord(t *testing.T, f *fakeNodes) {
	t.Helper()
	wantMarks(t, f, false)
	if node, has := f.raw(t); has {
		t.Fatalf("record %s, want none", node.Annotations[interruption.Annotation])
	}
}

// Days ahead it is recorded and nothing else; it is drained from the lead before the window on.
func TestScheduledEventWaitsForItsLead(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		n := scheduled("a", 5*24*time.Hour, interruption.ActionRetirement)
		if v := accept(t, h, n); v != interruption.Accepted {
			t.Fatalf("verdict %s", v)
		}
		again := untilStable(t, f, h)
		wantMarks(t, f, false)
		wantPhase(t, f, interruption.Waiting)
		if want := time.Until(n.Deadline.Add(-lead)); again != want || s.requests != 0 {
			t.Fatalf("looks again in %s, %d requests; want %s and none", again, s.requests, want)
		}
		time.Sleep(again)
		untilStable(t, f, h)
		wantMarks(t, f, true)
		rec := wantPhase(t, f, interruption.Replacing)
		if !s.in.Deadline.Equal(n.Deadline) || rec.Boot != "" {
			t.Errorf("drained with deadline %s, record %s", s.in.Deadline, rec)
		}
		s.left = 0
		untilStable(t, f, h)
		wantPhase(t, f, interruption.Released)
		if s.released != 1 {
			t.Errorf("released %d times", s.released)
		}
	})
}

// The window has begun, and the instance lives: we use what time there is.
func TestScheduledEventInsideItsWindow(t *testing.T) {
	for name, late := range map[string]func(h *Handler) interruption.Notice{
		"heard of late": func(*Handler) interruption.Notice {
			return scheduled("a", -time.Hour, interruption.ActionStop)
		},
		"inside the lead": func(*Handler) interruption.Notice {
			return scheduled("a", lead-time.Minute, interruption.ActionStop)
		},
	} {
		t.Run(name, func(t *testing.T) {
			scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				if v := accept(t, h, late(h)); v != interruption.Accepted {
					t.Fatalf("verdict %s", v)
				}
				wantMarks(t, f, true)
				untilStable(t, f, h)
				wantPhase(t, f, interruption.Replacing)
			})
		})
	}
	t.Run("nobody ran when it began", func(t *testing.T) {
		scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
			accept(t, h, scheduled("a", time.Hour, interruption.ActionStop))
			time.Sleep(3 * time.Hour)
			again := untilStable(t, f, h)
			wantPhase(t, f, interruption.Replacing)
			if again <= 0 || again > 20*time.Second {
				t.Errorf("looks again in %s, want the time of an emergency", again)
			}
		})
	})
}

// If EC2 interrupts the instance after a window begins, the drain goes on until then.
func TestDrainOutlastsAWindow(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, scheduled("a", time.Minute, interruption.ActionReboot))
		spot := notice(interruption.SpotInterruption)
		accept(t, h, spot)
		again := untilStable(t, f, h)
		time.Sleep(again)
		again = untilStable(t, f, h)
		if rec := wantPhase(t, f, interruption.Replacing); !rec.Deadline.Equal(spot.Deadline) || s.released > 0 {
			t.Fatalf("record %s when the window begins, want %s", rec, spot.Deadline)
		}
		time.Sleep(again)
		untilStable(t, f, h)
		if rec := wantPhase(t, f, interruption.Released); rec.Pods.Left != 3 {
			t.Errorf("record %s, want 3 left", rec)
		}
	})
}

func TestEarliestOfTwoScheduledEventsDecides(t *testing.T) {
	late := scheduled("late", 10*24*time.Hour, interruption.ActionReboot)
	for name, withdraw := range map[string]func(early interruption.Notice) interruption.Notice{
		"by its id": func(early interruption.Notice) interruption.Notice { return withdrawn(early) },
		"by the other source": func(e interruption.Notice) interruption.Notice {
			e.Source, e.EventID = interruption.IMDS, "x"
			return withdrawn(e)
		},
	} {
		t.Run(name, func(t *testing.T) {
			scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				late := late
				late.Deadline = time.Now().Add(10 * 24 * time.Hour)
				early := scheduled("early", 2*time.Hour, interruption.ActionReboot)
				accept(t, h, late)
				accept(t, h, early)
				again := untilStable(t, f, h)
				if want := time.Until(early.Deadline.Add(-lead)); again != want {
					t.Fatalf("looks again in %s, want %s", again, want)
				}
				time.Sleep(again)
				untilStable(t, f, h)
				wantMarks(t, f, true)
				if rec := wantPhase(t, f, interruption.Replacing); rec.Boot != "boot-1" || rec.Event != "early" {
					t.Fatalf("record %s", rec)
				}

				// The early one is canceled in the middle of its drain: the late one waits.
				if v := accept(t, h, withdraw(early)); v != interruption.Accepted {
					t.Fatalf("verdict %s", v)
				}
				untilStable(t, f, h)
				wantMarks(t, f, false)
				rec := wantPhase(t, f, interruption.Waiting)
				if rec.Event != "late" || len(rec.Ours) != 0 || rec.Replacement != nil || rec.Boot != "" || rec.Pods != nil {
					t.Fatalf("record %s, want only what waits", rec)
				}
				// Both come again, as messages do.
				for _, n := range []interruption.Notice{early, late, withdraw(early)} {
					if v := accept(t, h, n); v != interruption.Duplicate {
						t.Errorf("verdict %s, want duplicate", v)
					}
				}
				if again := untilStable(t, f, h); again != time.Until(late.Deadline.Add(-lead)) {
					t.Errorf("looks again in %s", again)
				}
				time.Sleep(time.Until(late.Deadline.Add(-lead)))
				s.left = 0
				untilStable(t, f, h)
				wantPhase(t, f, interruption.Drained)
				wantMarks(t, f, true)
				accept(t, h, withdrawn(late))
				untilStable(t, f, h)
				wantNoRecord(t, f)
			})
		})
	}
}

// The window is put off while the node is being drained for it: the marks are undone, and the
// node waits.
func TestScheduledEventIsPutOff(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		n := scheduled("a", time.Minute, interruption.ActionReboot)
		accept(t, h, n)
		untilStable(t, f, h)
		wantMarks(t, f, true)
		time.Sleep(time.Second)
		later := scheduled("a", 48*time.Hour, interruption.ActionReboot)
		if v := accept(t, h, later); v != interruption.Accepted {
			t.Fatalf("verdict %s", v)
		}
		again := untilStable(t, f, h)
		wantMarks(t, f, false)
		wantPhase(t, f, interruption.Waiting)
		if want := time.Until(later.Deadline.Add(-lead)); again != want {
			t.Errorf("looks again in %s, want %s", again, want)
		}
		if v := accept(t, h, n); v != interruption.Duplicate { // an earlier word comes late
			t.Errorf("verdict %s", v)
		}
	})
}

// A withdrawal at any phase.
func TestWithdrawal(t *testing.T) {
	for name, tt := range map[string]struct {
		in     time.Duration
		action string
		before func(s *script)
		phase  interruption.Phase // when it comes
		undone bool
		drains map[string]float64
	}{
		"while it waits":  {24 * time.Hour, interruption.ActionReboot, func(*script) {}, interruption.Waiting, true, map[string]float64{}},
		"while it drains": {time.Minute, interruption.ActionRetirement, func(*script) {}, interruption.Replacing, true, map[string]float64{"scheduled-event canceled": 1}},
		"when drained": {time.Minute, interruption.ActionReboot, func(s *script) { s.left = 0 }, interruption.Drained, true,
			map[string]float64{"scheduled-event completed": 1}},
		"when left to EC2": {time.Minute, interruption.ActionRetirement, func(s *script) { s.left = 0 }, interruption.Released, true,
			map[string]float64{"scheduled-event completed": 1}},
		"when the Node is deleted": {time.Minute, interruption.ActionRetirement, func(s *script) { s.left = 0 }, interruption.Released, false,
			map[string]float64{"scheduled-event completed": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				n := scheduled("a", tt.in, tt.action)
				if v := accept(t, h, withdrawn(scheduled("unknown", tt.in, tt.action))); v != interruption.Ignored {
					t.Fatalf("verdict %s of a withdrawal of nothing", v)
				}
				accept(t, h, n)
				tt.before(s)
				untilStable(t, f, h)
				wantPhase(t, f, tt.phase)
				other := scheduled("other", time.Hour, interruption.ActionStop)
				if v := accept(t, h, withdrawn(other)); v != interruption.Duplicate {
					t.Errorf("verdict %s of a withdrawal of something else", v)
				}
				want := interruption.Accepted
				if !tt.undone {
					want = interruption.Duplicate
					f.change(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
				}
				if v := accept(t, h, withdrawn(n)); v != want {
					t.Fatalf("verdict %s, want %s", v, want)
				}
				untilStable(t, f, h)
				if !tt.undone {
					wantPhase(t, f, tt.phase)
					return
				}
				wantNoRecord(t, f)
				// The withdrawal again, then its announcement, late: nothing happens.
				if v := accept(t, h, withdrawn(n)); v != interruption.Ignored {
					t.Errorf("verdict %s of a second withdrawal", v)
				}
				if v := accept(t, h, n); v != interruption.Duplicate {
					t.Errorf("verdict %s of an announcement after its withdrawal", v)
				}
				wantNoRecord(t, f)
				if diff := cmp.Diff(tt.drains, drains(t, h)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// A notice comes between the withdrawal and its undoing.
func TestNoticeWhileBeingUndone(t *testing.T) {
	for name, more := range map[string][]interruption.Notice{
		"nothing else stood": nil,
		"another one waits":  {scheduled("late", 240*time.Hour, interruption.ActionReboot)},
	} {
		t.Run(name, func(t *testing.T) {
			scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				forgotten := 0
				h.opts.Drainer = &forgets{h.opts.Drainer.(*fakeDrainer), &forgotten}
				n := scheduled("a", time.Minute, interruption.ActionRetirement)
				accept(t, h, n)
				for _, m := range more {
					m.Deadline = time.Now().Add(240 * time.Hour)
					accept(t, h, m)
				}
				untilStable(t, f, h)
				h.opts.Drainer.(*forgets).CancelFunc = func(string) *plan.Canceled { return nil }
				accept(t, h, withdrawn(n))
				if again := untilStable(t, f, h); again != time.Second {
					t.Fatalf("looks again in %s, want a second", again)
				}
				if v := accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.EventID = "spot" })); v != interruption.Accepted {
					t.Fatalf("verdict %s", v)
				}
				before := forgotten
				untilStable(t, f, h)
				rec := wantPhase(t, f, interruption.Replacing)
				wantMarks(t, f, true)
				if rec.Kind != interruption.SpotInterruption || rec.Canceled || len(rec.Ours) < 2 || forgotten != before+1 {
					t.Errorf("record %s, the drain that was being cancelled forgotten %d times", rec, forgotten-before)
				}
				if v := accept(t, h, n); v != interruption.Duplicate {
					t.Errorf("verdict %s of what was withdrawn", v)
				}
			})
		})
	}
}

// forgets counts how often a drain is forgotten.
type forgets struct {
	*fakeDrainer
	n *int
}

func (f *forgets) Remove(node string) {
	*f.n++
	f.fakeDrainer.Remove(node)
}

// A node whose recommendation waits, or only cordons, is drained for its scheduled event.
func TestCordonOfARecommendationEndsWithAnEvent(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		h.opts.Rules = (&rules{rebalance: interruption.RebalanceCordon, lead: lead}).of
		accept(t, h, notice(interruption.RebalanceRecommendation))
		n := scheduled("a", time.Hour, interruption.ActionReboot)
		accept(t, h, n)
		for left := time.Until(n.Deadline.Add(-lead)); left > 0; left = time.Until(n.Deadline.Add(-lead)) {
			again := untilStable(t, f, h)
			if again <= 0 || again > left || s.requests != 0 {
				t.Fatalf("looks again in %s with %s left, %d requests", again, left, s.requests)
			}
			time.Sleep(again)
		}
		s.state = provisioner.StateReady
		untilStable(t, f, h)
		if s.requests == 0 || !s.in.Deadline.Equal(n.Deadline) {
			t.Errorf("not drained: %d requests, %+v", s.requests, s.in)
		}
	})
}

// A scheduled node that is scaled down before its time is no failed drain.
func TestWaitingNodeGone(t *testing.T) {
	scheduledStory(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, scheduled("a", 24*time.Hour, interruption.ActionReboot))
		untilStable(t, f, h)
		node, _ := f.raw(t)
		f.watcher.Delete(node)
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if counted := drains(t, h); len(counted) != 0 {
			t.Errorf("counted %v", counted)
		}
	})
}

// drains are the drains counted, by kind and result.
func drains(t *testing.T, h *Handler) map[string]float64 {
	t.Helper()
	return counts(t, h.metrics.drains)
}

// counts are the counters of two labels that are not zero.
func counts(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if n := m.GetCounter().GetValue(); n != 0 {
				counted[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = n
			}
		}
	}
	return counted
}
