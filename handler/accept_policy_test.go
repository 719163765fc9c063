package handler

import (
	"testing"
	"time"

	"spot-handler/handler/interruption"
)

// What says that an instance ends waits for nobody's rebalance policy, even if its node is recommended. What
// leaves time has it read before it takes a place among the writers.
func TestRebalancePolicyIsReadBeforeTheWriters(t *testing.T) {
	for _, kind := range interruption.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			slow, reads := time.Duration(0), 0
			story(t, func(t *testing.T, _ *script, f *fakeNodes, _ *Handler) {
				var h *Handler
				h = newTestHandler(t, f, func(o *setup) {
					o.rules.rebalance = interruption.RebalanceCordon
					o.rules.pool = func() (interruption.RebalancePolicy, error) {
						if reads++; h.writing.TryAcquire(acceptsAtOnce) {
							h.writing.Release(acceptsAtOnce)
						} else {
							t.Error("read inside a place among the writers")
						}
						time.Sleep(slow)
						return interruption.RebalanceReplace, nil
					}
				})
				accept(t, h, notice(interruption.RebalanceRecommendation, func(n *interruption.Notice) { n.EventID = "recommended" }))
				reads, slow = 0, 5*time.Second
				start, n := time.Now(), notice(kind)
				if n.Kind == interruption.ScheduledEvent {
					n.Deadline = n.Received.Add(7 * 24 * time.Hour)
				}
				accept(t, h, n)
				if took := time.Since(start); kind.Certain() && (took != 0 || reads != 0) {
					t.Errorf("took %s, and read the policy %d times; want at once", took, reads)
				}
				if _, rec := f.now(t); !kind.Certain() && rec.Phase != interruption.Waiting {
					t.Errorf("record %s, want that it waits for its turn, as its pool's policy says", rec)
				}
			})
		})
	}
}
