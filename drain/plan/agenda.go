package plan

import (
	"container/heap"
	"time"

	"spot-handler/handler/interruption"
)

// agenda is what is due when. What is due at the same time comes in an order of its own, whatever order it was
// entered in: that can be a map's.
type agenda[T comparable] struct {
	at   map[T]time.Time
	heap dates[T] // the entries that at does not have are outdated
}

type date[T comparable] struct {
	of T
	at time.Time
}

func newAgenda[T comparable](order func(a, b T) int) agenda[T] {
	return agenda[T]{at: map[T]time.Time{}, heap: dates[T]{order: order}}
}

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
	for a.heap.Len() > 0 {
		first := a.heap.list[0]
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

// dates has the earliest first.
type dates[T comparable] struct {
	list  []date[T]
	order func(a, b T) int // of those at the same time
}

func (h *dates[T]) Len() int { return len(h.list) }
func (h *dates[T]) Less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	if order := a.at.Compare(b.at); order != 0 {
		return order < 0
	}
	return h.order(a.of, b.of) < 0
}
func (h *dates[T]) Swap(i, j int) { h.list[i], h.list[j] = h.list[j], h.list[i] }
func (h *dates[T]) Push(x any)    { h.list = append(h.list, x.(date[T])) }
func (h *dates[T]) Pop() any {
	end := len(h.list) - 1
	last := h.list[end]
	h.list[end] = date[T]{}
	h.list = h.list[:end]
	return last
}

// earliest is the first of the times that are not zero.
func earliest(times ...time.Time) (first time.Time) {
	for _, at := range times {
		first = interruption.Earlier(first, at)
	}
	return first
}
