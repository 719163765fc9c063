package status

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// Those whose deadline is nearest come first, those without one after them, and those that are over last, of which
// the newest first.
func TestOrder(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	node := func(name string, left time.Duration, ended time.Duration) *corev1.Node {
		n := interruption.Notice{Kind: interruption.SpotInterruption, EventID: name, Noticed: now, Received: now}
		if left > 0 {
			n.Deadline = now.Add(left)
		}
		rec := interruption.NewRecord(n)
		if rec.Phase = interruption.Draining; ended > 0 {
			rec.Phase, rec.Ended = interruption.Released, now.Add(-ended)
		}
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{interruption.Annotation: rec.String()}}}
	}
	want := []*corev1.Node{
		node("nearest", time.Minute, 0), node("next-a", 2*time.Minute, 0), node("next-b", 2*time.Minute, 0), node("without", 0, 0),
		node("over-just-now", time.Second, time.Minute), node("over-a", time.Hour, time.Hour), node("over-b", 0, time.Hour),
	}
	for i := range want { // whichever was first
		list := slices.Concat(want[i:], want[:i])
		slices.Reverse(list[:i/2])
		for n, got := range Of(now, list, nil) {
			if got.Node != want[n].Name {
				t.Errorf("from %d on: %s at place %d, want %s", i, got.Node, n, want[n].Name)
			}
		}
	}
}
