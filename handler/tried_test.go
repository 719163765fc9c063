package handler

import (
	"testing"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// A pool that came to nothing is on the Node before the drain goes on: no process
// tries it again.
func TestTriedPoolsAreRecordedAtOnce(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		answer := interruption.Replacement{Backend: "b", Name: "first-1", Pool: "first", State: provisioner.StateRequested}
		h.opts.Provisioner = &fakeProvisioner{RequestFunc: func(interruption.Record) (interruption.Replacement, error) { return answer, nil }}
		accept(t, h, notice(interruption.SpotInterruption))
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		answer.Name, answer.Pool, answer.Tried = "second-1", "second", "first"
		for range 2 { // the second time changes nothing
			if _, err := step(t, h); err != nil {
				t.Fatal(err)
			}
			if rec := wantPhase(t, f, interruption.Replacing); *rec.Replacement != answer {
				t.Fatalf("record %s, want %+v", rec, answer)
			}
		}
		if f.patches != 3 {
			t.Errorf("%d patches, want 3: the notice, the first pool, the second", f.patches)
		}
	})
}
