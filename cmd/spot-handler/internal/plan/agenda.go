package plan

import (
	"cmp"
	"container/heap"
	"time"
)

// react is how long a control loop takes to see a change and to act on it: the disruption controller,
// a ReplicaSet, the scheduler, the drain itself. None is slower than this when it has little to do.
const react = 100 * time.Millisecond

// What happens at the same time happens in this order.
const (
	podsFirst = iota
	thenControllers
	thenScheduler
	thenDrain
)

// agenda is what is to happen, in the order of time.
type agenda struct {
	heap   agendaHeap
	number int
}

type entry struct {
	at     time.Time
	class  int
	number int
	run    func()
}

// at puts something on the agenda, not before now. Times are rounded up to react, so that what
// happens together is seen together.
func (w *world) at(t time.Time, class int, run func()) {
	if t.Before(w.now) {
		t = w.now
	}
	if over := t.Sub(w.in.At) % react; over > 0 {
		t = t.Add(react - over)
	}
	w.number++
	heap.Push(&w.agenda.heap, entry{t, class, w.number, run})
}

// run plays until nothing more happens, or until the horizon.
func (w *world) run(horizon time.Time) {
	for len(w.agenda.heap) > 0 {
		next := heap.Pop(&w.agenda.heap).(entry)
		if next.at.After(horizon) {
			break
		}
		w.now = next.at
		next.run()
	}
}

type agendaHeap []entry

func (h agendaHeap) Len() int { return len(h) }
func (h agendaHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.class, b.class), cmp.Compare(a.number, b.number)) < 0
}
func (h agendaHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *agendaHeap) Push(x any)   { *h = append(*h, x.(entry)) }
func (h *agendaHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
