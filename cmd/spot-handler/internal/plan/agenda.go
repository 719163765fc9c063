package plan

import (
	"cmp"
	"slices"
	"time"

	"spot-handler/handler/interruption"
)

// react is how long a control loop takes to see a change and to act on it: the disruption controller,
// a ReplicaSet, the scheduler. None is slower than this when it has little to do.
const react = 100 * time.Millisecond

// What happens at the same time happens in this order.
const (
	podsFirst = iota
	thenControllers
	thenScheduler
	thenDrain
)

// agenda is what is to happen, the last first: most of what is added happens soon.
type agenda struct {
	entries []entry
	number  int
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
	t = interruption.Later(t, w.now)
	if over := t.Sub(w.in.At) % react; over > 0 {
		t = t.Add(react - over)
	}
	w.exactly(t, class, run)
}

// exactly puts something on the agenda at that very time.
func (w *world) exactly(t time.Time, class int, run func()) {
	w.number++
	e := entry{t, class, w.number, run}
	i, _ := slices.BinarySearchFunc(w.entries, e, func(a, b entry) int { // the last first
		return cmp.Or(b.at.Compare(a.at), cmp.Compare(b.class, a.class), cmp.Compare(b.number, a.number))
	})
	w.entries = slices.Insert(w.entries, i, e)
}

// run plays until nothing more happens, or until the horizon.
func (w *world) run(horizon time.Time) {
	for len(w.entries) > 0 {
		last := len(w.entries) - 1
		next := w.entries[last]
		w.entries = w.entries[:last]
		if next.at.After(horizon) {
			break
		}
		w.now = next.at
		next.run()
	}
}
