package plan

import (
	"container/heap"
	"time"

	"spot-handler/handler/interruption"
)

// agenda is what is due when.
type agenda[T comparable] struct {
	at   map[T]time.Time
	heap dates[T] // the entries that at does not have are outdated
}

type date[T comparable] struct {
	of T
	at time.Time
}

func newAgenda[T comparable]() agenda[T] { return agenda[T]{at: map[T]time.Time{}} }

// set has it due then, and at no other time.
func (a *agenda[T]) set(of T, at time.Time) {
	if was, ok := a.at[of]; ok && was.Equal(at) {
		return
	}
	a.at[of] = at
	heap.Push(&a.heap, date[T]{of, at})
}

// sooner has it due then at the latest.
func (a *agenda[T]) sooner(of T, at time.Time) {
	if was, ok := a.at[of]; !ok || at.Before(was) {
		a.set(of, at)
	}
}

func (a *agenda[T]) drop(of T) { delete(a.at, of) }

// next is when the first is due; zero if there is none.
func (a *agenda[T]) next() time.Time {
	for len(a.heap) > 0 {
		first := a.heap[0]
		if at, ok := a.at[first.of]; ok && at.Equal(first.at) {
			return first.at
		}
		heap.Pop(&a.heap)
	}
	return time.Time{}
}

// take takes out the first that is due; false if none is.
func (a *agenda[T]) take(now time.Time) (of T, ok bool) {
	if at := a.next(); at.IsZero() || now.Before(at) {
		return of, false
	}
	of = heap.Pop(&a.heap).(date[T]).of
	delete(a.at, of)
	return of, true
}

type dates[T comparable] []date[T]

func (h dates[T]) Len() int           { return len(h) }
func (h dates[T]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dates[T]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dates[T]) Push(x any)        { *h = append(*h, x.(date[T])) }
func (h *dates[T]) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = date[T]{}
	*h = old[:len(old)-1]
	return last
}

// earliest is the first of the times that are not zero.
func earliest(times ...time.Time) (first time.Time) {
	for _, at := range times {
		first = interruption.Earlier(first, at)
	}
	return first
}
