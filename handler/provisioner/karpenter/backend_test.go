package karpenter

import (
	"testing"
	"time"

	"spot-handler/handler/provisioner"
)

// A node that was unsupported is looked at again, but what Karpenter deletes it
// replaces.
func TestUnsupportedIsDecidedAgain(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		source := sourcePool()
		source.SetAnnotations(nil)
		notReady := fallbackPool(t, set([]any{}, "status", "conditions"))
		c, rec := newCluster(t, Options{}, source, notReady, sourceNodeClaim()), record()
		wantState(t, c.request(&rec), provisioner.StateUnsupported, "none suits: fallback is not Ready")
		if err := c.Tracker().Update(nodePoolResource, fallbackPool(t), ""); err != nil {
			t.Fatal(err)
		}
		wantState(t, c.request(&rec), provisioner.StateUnsupported, "none suits")
		time.Sleep(poolTTL + time.Second)
		wantState(t, c.request(&rec), provisioner.StateRequested, "")
	})
	bubble(t, "not with every change of a pod", func(t *testing.T) {
		c, rec := newCluster(t, Options{}, sourcePool(), fallbackPool(t, set(map[string]any{"cpu": "1"}, "spec", "limits")), sourceNodeClaim()), record()
		for range 100 {
			wantState(t, c.request(&rec), provisioner.StateFailed, "leaves no room")
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(c.calls()); n > 6 { // of the pools two, and one for each time that it is decided
			t.Errorf("%d calls in 10 s, want a few", n)
		}
		again := rec
		again.Instance = "i-another" // in the Node's place
		wantState(t, c.request(&again), provisioner.StateFailed, "leaves no room")
		if n := len(c.calls()); n == 0 {
			t.Error("another instance was given the answer of the first")
		}
	})
	bubble(t, "being replaced", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		r := unsupported(reasonReplacing)
		rec.Replacement = &r
		wantState(t, c.request(&rec), provisioner.StateUnsupported, reasonReplacing)
		c.wantCalls()
	})
}
