package handler

import (
	"testing"
	"testing/synctest"

	"spot-handler/handler/interruption"
)

// A replica that does not lead hears about every node for weeks, and keeps none of it.
func TestNothingIsKeptWhileNobodyReconciles(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		if h.queue.Len() != 0 || len(h.memory.byNode) != 0 {
			t.Errorf("%d nodes wait for nobody, %d are remembered", h.queue.Len(), len(h.memory.byNode))
		}
	})
}

// A replica that does not lead writes records for as long as it lives, and keeps none of them.
func TestStandbyKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newStandby(t, newFakeNodes(testNode()), nil)
		accept(t, h, notice(interruption.SpotInterruption))
		synctest.Wait()
		if len(h.opts.Index.WithRecord()) != 1 {
			t.Fatal("the record is not seen")
		}
		if n := h.queue.Len(); n != 0 {
			t.Errorf("%d names wait for a reconciliation that nobody makes", n)
		}
	})
}
