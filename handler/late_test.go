package handler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// An instance begins to hibernate, and the notice can be recorded only after a while, as the API server
// is unreachable, or nobody leads when it is recorded. The pods have their 20 s all the same, unless the
// node is gone, or an earlier process has used them up.
func TestNoticeWithoutTimeThatComesLate(t *testing.T) {
	for name, tt := range map[string]struct {
		recorded, led time.Duration // after it was received
		change        func(*corev1.Node)
		drained       bool
		ends          time.Duration
	}{
		"at once":        {drained: true, ends: 20 * time.Second},
		"recorded late":  {recorded: 25 * time.Second, led: 25 * time.Second, drained: true, ends: 45 * time.Second},
		"led late":       {led: time.Minute, drained: true, ends: 80 * time.Second},
		"not Ready then": {led: time.Minute, change: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, ends: time.Minute},
		"others had begun": {led: time.Minute, ends: time.Minute, change: func(n *corev1.Node) {
			rec, _ := interruption.ParseRecord(n.Annotations[interruption.Annotation])
			rec.Phase = interruption.Draining
			n.Annotations[interruption.Annotation] = rec.String()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				start, drains := time.Now(), 0
				h.opts.Drainer.(*fakeDrainer).DrainFunc = func(string, plan.NodeState) (plan.Status, bool) {
					drains++
					return plan.Status{Total: 3}, true
				}
				n := notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.Action, n.Deadline = interruption.ActionHibernate, n.Received })
				time.Sleep(tt.recorded)
				accept(t, h, n)
				time.Sleep(tt.led - tt.recorded)
				if tt.change != nil {
					f.change(tt.change)
				}
				again, err := step(t, h)
				if err != nil {
					t.Fatal(err)
				}
				if got := drains > 0; got != tt.drained {
					t.Errorf("drained: %v, want %v", got, tt.drained)
				}
				for ; s.finished == 0 && again > 0; again, _ = step(t, h) {
					time.Sleep(again)
				}
				if took := time.Since(start); took != tt.ends || s.finished != 1 {
					t.Errorf("ended %d times, after %s, want after %s", s.finished, took, tt.ends)
				}
			})
		})
	}
}

// A drain for a recommendation is under way when the instance begins to hibernate, which is recorded late.
func TestUpgradeWithoutTimeThatComesLate(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.RebalanceRecommendation))
		for range 3 {
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		n := notice(interruption.SpotInterruption, func(n *interruption.Notice) {
			n.EventID, n.Action, n.Deadline = "hibernates", interruption.ActionHibernate, n.Received
		})
		time.Sleep(25 * time.Second)
		accept(t, h, n)
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		if s.finished != 0 {
			t.Error("the drain has ended at the first look")
		}
		if s.in.Deadline.IsZero() {
			t.Error("the drain has no deadline")
		}
	})
}

// A notice during a drain gives it no more time if the deadline doesn't change.
func TestFurtherNoticeGivesNoMoreTime(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.CapacityReservationInterruption, func(n *interruption.Notice) { n.Deadline = n.Noticed.Add(time.Minute) }))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Second)
		accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) { n.EventID = "event-2" }))
		if again, err := step(t, h); err != nil || again > 5*time.Second {
			t.Errorf("looks again in %s, want the end of the first drain: %v", again, err)
		}
	})
}

// What comes to the node before its mark is there has not been put back by its controller: the write of the mark can
// hang. A process that takes a drain over knows only when the notice was received.
func TestMarkThatLandsLate(t *testing.T) {
	for name, phase := range map[string]interruption.Phase{"own": interruption.Noticed, "taken over": interruption.Draining} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
				n := notice(interruption.SpotInterruption)
				accept(t, h, n)
				time.Sleep(9 * time.Second)
				f.change(func(node *corev1.Node) {
					rec, _ := interruption.ParseRecord(node.Annotations[interruption.Annotation])
					rec.Phase = phase
					node.Annotations[interruption.Annotation] = rec.String()
				})
				var want time.Time
				if phase == interruption.Noticed {
					want = time.Now()
				}
				for range 2 {
					if _, err := step(t, h); err != nil {
						t.Fatal(err)
					}
					if !s.in.Marked.Equal(want) || !s.in.Since.Equal(n.Received) {
						t.Errorf("noticed at %s, marked by %s, want %s", s.in.Since, s.in.Marked, want)
					}
					time.Sleep(time.Second)
				}
			})
		})
	}
}
