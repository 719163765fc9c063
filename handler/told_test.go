package handler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
)

// toldEvents writes down what it is told.
type toldEvents struct {
	fakeEvents
	told []string
}

var _ Events = (*toldEvents)(nil)

func (e *toldEvents) Noticed(_ *corev1.Node, r interruption.Record) {
	e.told = append(e.told, "noticed "+string(r.Kind))
}

func (e *toldEvents) Ended(n *corev1.Node, reason string, p interruption.Pods, _ time.Duration, _ string) {
	rec, _, err := recordOf(n)
	if err != nil || rec.Instance != instance {
		reason += " of nobody"
	}
	e.told = append(e.told, reason)
}

// However often it is announced, one interruption is one notice. A rebalance
// recommendation and the interruption that follows it are two.
func TestNoticeIsToldOnce(t *testing.T) {
	events := &toldEvents{}
	h := newTestHandler(t, newFakeNodes(testNode()), func(o *Options) { o.Events = events })
	accept(t, h, notice(interruption.RebalanceRecommendation, func(n *interruption.Notice) { n.EventID = "event-0" }))
	accept(t, h, notice(interruption.SpotInterruption))
	accept(t, h, notice(interruption.SpotInterruption))
	accept(t, h, notice(interruption.SpotInterruption, func(n *interruption.Notice) {
		n.Source, n.EventID, n.Deadline = interruption.IMDS, "imds-1", n.Deadline.Add(-10*time.Second)
	}))
	want := []string{"noticed rebalance-recommendation", "noticed spot-interruption"}
	if diff := cmp.Diff(want, events.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// A node that goes before its drain has ended is an outcome too, told with what is known
// of it.
func TestNodeGoneIsTold(t *testing.T) {
	story(t, func(t *testing.T, s *script, f *fakeNodes, h *Handler) {
		events := &toldEvents{}
		h.opts.Events = events
		accept(t, h, notice(interruption.SpotInterruption))
		s.left = 1
		if _, err := step(t, h); err != nil {
			t.Fatal(err)
		}
		h.nodeGone(t.Context(), "node-a", h.remember("node-a"))
		h.nodeGone(t.Context(), "node-a", h.remember("node-a")) // forgotten
		want := []string{"noticed spot-interruption", notify.ReasonNodeGone}
		if diff := cmp.Diff(want, events.told); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
	})
}
