package handler

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

func TestDrained(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		if h.Drained("node-a") {
			t.Error("a node without a record is drained")
		}
		accept(t, h, notice(interruption.SpotInterruption))
		s.left = 0
		for range 2 { // under way, and over
			synctest.Wait()
			if !h.Drained("node-a") {
				t.Error("a node that is being drained, or has just been, is taken for one that nobody drains")
			}
			h.opts.CordonOnly = true
			if h.Drained("node-a") {
				t.Error("a node that is only cordoned now is taken for one that is drained")
			}
			h.opts.CordonOnly = false
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(sweepAfter)
		if h.Drained("node-a") {
			t.Error("a node that EC2 has not ended counts as drained for ever")
		}
		f.change(func(n *corev1.Node) {
			rec := interruption.NewRecord(scheduled("a", 240*time.Hour, interruption.ActionReboot))
			rec.Phase = interruption.Waiting
			n.Annotations[interruption.Annotation] = rec.String()
		})
		synctest.Wait()
		if h.Drained("node-a") {
			t.Error("a node that waits for days counts as drained")
		}
		if !h.Drained("gone") {
			t.Error("surged pods of a node that is gone are looked after")
		}
	})
}
