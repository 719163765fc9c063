package status

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// A passed-over node waits for its next turn, and no other node waits behind it. A node that is only cordoned doesn't
// wait for a drain, and one whose pods are all terminating no longer waits for its replacement.
func TestNobodyWaitsInVain(t *testing.T) {
	passed := func(r *interruption.Record) { r.Replacement = replacement("Failed", "no capacity") }
	all := []*corev1.Node{
		node("passed-over", "spot", recommended(-30, passed)),
		node("passed-over-too", "spot", recommended(-20, passed)),
		node("new", "spot", recommended(-10, func(*interruption.Record) {})),
		node("cordoned", "spot", recommended(-9, func(r *interruption.Record) { r.Phase = interruption.Noticed })),
		node("ending", "spot", as(interruption.Draining, &interruption.Pods{Total: 1}, replacement("Requested", ""))),
	}
	want := map[string]string{
		"passed-over":     "its next turn: it could not be replaced this time",
		"passed-over-too": "its next turn: it could not be replaced this time",
		"new":             "a slot in its pool: 0 under way, 0 ahead of it",
		"cordoned":        "a notice, or its recommendation to lapse: it is only cordoned",
		"ending":          "1 pod to end",
	}
	ends := pod(1, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: after(60)} })
	got := map[string]string{}
	for _, i := range Of(after(50), all, map[string][]*corev1.Pod{"ending": {ends}, "cordoned": {pod(2, func(*corev1.Pod) {})}}) {
		got[i.Node] = i.WaitsFor
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
