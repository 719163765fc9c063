package handler

import (
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// If a node's pods aren't known by the time it has to end, because the API server can't keep up, the node waits until
// they are, and isn't looked at over and over in the meantime.
func TestUnknownPodsAtTheDeadline(t *testing.T) {
	story(t, func(t *testing.T, _ *script, f *fakeNodes, h *Handler) {
		known := false
		h.opts.Drainer = &fakeDrainer{LookFunc: func(string, plan.NodeState) (plan.View, bool) { return plan.View{}, known }}
		accept(t, h, notice(interruption.SpotInterruption))
		looks := 0
		for began := time.Now(); time.Since(began) < 3*time.Minute; looks++ {
			again, err := step(t, h)
			if err != nil {
				t.Fatal(err)
			}
			if again == 0 {
				break
			}
			time.Sleep(again)
		}
		if looks > 5 {
			t.Errorf("looked at %d times, and its pods were not known", looks)
		}
		known = true
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		wantPhase(t, f, interruption.Released)
	})
}

// What is overdue is looked at again after a while, not at once.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for in, want := range map[time.Duration]time.Duration{-time.Hour: overdue, 0: overdue, 1: 1, time.Hour: time.Hour} {
			if got := until(time.Now().Add(in)); got != want {
				t.Errorf("until %s from now: %s, want %s", in, got, want)
			}
		}
		if got := until(time.Time{}); got != 0 {
			t.Errorf("until never: %s", got)
		}
	})
}
