package turns

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// queue is a line of pools of ten nodes each, and what it has done.
type queue struct {
	*Line
	counted  int
	notified []string
}

func newQueue(t *testing.T, atOnce string) *queue {
	t.Helper()
	c, err := ParseConcurrency(atOnce)
	if err != nil {
		t.Fatal(err)
	}
	q := &queue{}
	count := func(nodes.Pool) int { q.counted++; return 10 }
	q.Line = NewLine(c, count, func(node string) { q.notified = append(q.notified, node) })
	return q
}

func (q *queue) wantNotified(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, q.notified); diff != "" {
		t.Errorf("notified (-want +got):\n%s", diff)
	}
	q.notified = nil
}

// inPool is a node of a pool, recommended so many seconds after the first.
func inPool(pool, name string, after int) (*corev1.Node, interruption.Record) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"karpenter.sh/nodepool": pool}}}
	at := time.Date(2026, 1, 1, 12, 0, after, 0, time.UTC)
	return node, interruption.Record{Kind: interruption.RebalanceRecommendation, Phase: interruption.Waiting, Received: at}
}

// Those recommended first go first, each pool by itself, and the next is woken as soon as there is room.
func TestLine(t *testing.T) {
	q := newQueue(t, "2")
	for after, name := range []string{"c", "a", "d", "b"} {
		q.Enqueue(inPool("one", name, after))
	}
	q.Enqueue(inPool("two", "other", 9))
	q.wantNotified(t)
	for _, name := range []string{"d", "b"} {
		if q.Start(inPool("one", name, slices.Index([]string{"c", "a", "d", "b"}, name))) {
			t.Errorf("%s goes before it has a slot", name)
		}
	}
	q.wantNotified(t)
	if !q.Start(inPool("one", "c", 0)) {
		t.Error("the first waits")
	}
	q.wantNotified(t, "a")
	if begun, waiting := q.Ahead("b"); begun != 1 || waiting != 2 {
		t.Errorf("ahead of the last: %d have their turn and %d wait, want 1 and 2", begun, waiting)
	}
	if !q.Start(inPool("one", "a", 1)) || !q.Start(inPool("one", "c", 0)) {
		t.Error("there is room for two")
	}
	q.wantNotified(t, "d", "d") // each time that one goes
	if q.Start(inPool("one", "d", 2)) {
		t.Error("three have their turn")
	}
	if !q.Start(inPool("two", "other", 9)) {
		t.Error("a node waits for another pool's")
	}
	q.notified = nil
	q.Remove("a")
	q.wantNotified(t, "d")
	q.Remove("a") // which no longer stands there
	q.Remove("nobody")
	q.wantNotified(t)
	if !q.Start(inPool("one", "d", 2)) {
		t.Error("one has left, and the next waits")
	}
}

// Of two that were recommended at the same moment, always the same one goes first.
func TestSameMoment(t *testing.T) {
	q := newQueue(t, "1")
	q.Enqueue(inPool("one", "b", 0))
	q.Enqueue(inPool("one", "a", 0))
	if q.Start(inPool("one", "b", 0)) || !q.Start(inPool("one", "a", 0)) {
		t.Error("b goes before a")
	}
}

// A node keeps the turn that it has, whatever its record says yet, unless it joins another pool.
func TestTurnIsKept(t *testing.T) {
	q := newQueue(t, "1")
	if !q.Start(inPool("one", "a", 5)) {
		t.Fatal("the only one waits")
	}
	q.Enqueue(inPool("one", "a", 5))
	if q.Start(inPool("one", "b", 0)) || !q.Start(inPool("one", "a", 5)) {
		t.Error("a has lost its turn to one that was recommended earlier")
	}
	if begun, _ := q.Ahead("a"); begun != 0 {
		t.Errorf("%d others have their turn, want none but a", begun)
	}
	if !q.Start(inPool("two", "x", 9)) {
		t.Error("the only one of the other pool waits")
	}
	if q.Start(inPool("two", "a", 5)) {
		t.Error("a has brought its turn along to a pool where another has its own")
	}
	if begun, _ := q.Ahead("b"); begun != 0 || !q.Start(inPool("one", "b", 0)) {
		t.Error("a keeps its turn in the pool that it has left")
	}
	if begun, _ := q.Ahead("a"); begun != 1 {
		t.Errorf("%d have their turn in a's new pool, want one", begun)
	}
}

// What the Nodes say is taken over, as by a new leader.
func TestTurnsTaken(t *testing.T) {
	q := newQueue(t, "1")
	node, rec := inPool("one", "a", 9)
	rec.Phase = interruption.Draining
	q.Enqueue(node, rec)
	if q.Start(inPool("one", "b", 0)) {
		t.Error("b goes while a is drained")
	}
}

func TestOthersDoNotStandInLine(t *testing.T) {
	for name, change := range map[string]func(*interruption.Record){
		"a notice":    func(r *interruption.Record) { r.Kind = interruption.SpotInterruption },
		"over":        func(r *interruption.Record) { r.Phase = interruption.Drained },
		"is canceled": func(r *interruption.Record) { r.Canceled = true },
	} {
		q := newQueue(t, "1")
		node, rec := inPool("one", "a", 0)
		change(&rec)
		if q.Enqueue(node, rec); len(q.entries) != 0 {
			t.Errorf("%s: %v", name, q.entries)
		}
		if q.Start(node, rec) {
			t.Errorf("%s: it's its turn", name)
		}
	}
}

// A percentage is of the pool's nodes, which are counted again ten seconds later.
func TestSizeOfThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, "30%")
		started := 0
		for i := range 9 {
			q.Enqueue(inPool("one", fmt.Sprint("node-", i), i))
		}
		for _, i := range []int{2, 1, 0, 3, 4, 5, 6, 7, 8} { // the third may go before the first two
			if q.Start(inPool("one", fmt.Sprint("node-", i), i)) {
				started++
			}
		}
		if started != 3 || q.counted != 1 {
			t.Errorf("%d started and %d counts, want 3 and 1", started, q.counted)
		}
		time.Sleep(9 * time.Second)
		q.Start(inPool("one", "node-8", 8))
		if q.counted != 1 {
			t.Errorf("counted %d times within 9 s", q.counted)
		}
		time.Sleep(2 * time.Second)
		q.Start(inPool("one", "node-8", 8))
		if q.counted != 2 {
			t.Errorf("counted %d times after 11 s, want 2", q.counted)
		}
	})
}
