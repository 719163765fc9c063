package handler

import (
	"cmp"
	"slices"
	"time"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// Cordons come first: while a burst of notices is being written, a node's drain does not begin, for up to
// yieldFor. That finishes the cordons earlier, as drains take processor time from them, and FlowSchemas give
// out none of that. performance.md has the figures. A drain that has no more than drainsFor until its node ends,
// because the notice came late or gives no lead time, begins at once.
const (
	yieldFor = 30 * time.Second

	// drainsFor is a minute for the replacement to boot, and half a minute of grace.
	drainsFor = 90 * time.Second

	// burst is how many notices are being written at a time in a burst. For fewer no drain waits: their writes
	// may hang.
	burst = 8

	// yieldCheck is how often the nodes that wait are looked after while the burst goes on.
	yieldCheck = 2 * time.Second
)

// yields puts a node aside during a burst, if its drain can wait.
func (h *Handler) yields(name string) bool {
	k := h.memory.get(name)
	if k.firstDue.IsZero() {
		k.firstDue = time.Now()
	}
	if h.accepting.Load() < burst {
		return false
	}
	until := h.yieldsUntil(name, k.firstDue)
	left := time.Until(until)
	if left <= 0 {
		return false
	}
	h.asideMu.Lock()
	h.aside[name] = until
	if !h.asideChecked {
		h.asideChecked = true
		time.AfterFunc(min(left, yieldCheck), h.checkAside)
	}
	h.asideMu.Unlock()
	if h.accepting.Load() < burst { // by now
		h.resume()
	}
	return true
}

// yieldsUntil is how long a drain can wait that was first due at that time.
func (h *Handler) yieldsUntil(name string, firstDue time.Time) time.Time {
	until := firstDue.Add(yieldFor)
	node, ok := h.opts.Index.Get(name)
	if !ok {
		return until
	}
	if rec, err := nodes.Record(node); err == nil && !rec.Deadline.IsZero() {
		until = interruption.Earlier(until, rec.Deadline.Add(-drainsFor))
	}
	return until
}

// checkAside enqueues the nodes that have waited long enough, and the others too once the burst is over.
func (h *Handler) checkAside() {
	h.asideMu.Lock()
	defer h.asideMu.Unlock()
	now := time.Now()
	then, next := now, now.Add(yieldCheck)
	if h.accepting.Load() < burst {
		then = now.Add(yieldFor)
	}
	h.resumeLocked(then)
	for _, until := range h.aside {
		next = interruption.Earlier(next, until)
	}
	if h.asideChecked = len(h.aside) > 0; h.asideChecked {
		time.AfterFunc(next.Sub(now), h.checkAside)
	}
}

// resume enqueues all nodes that were put aside.
func (h *Handler) resume() {
	h.asideMu.Lock()
	defer h.asideMu.Unlock()
	h.resumeLocked(time.Now().Add(yieldFor))
}

// resumeLocked enqueues those that can wait until then at most, in the order in which their time comes.
func (h *Handler) resumeLocked(then time.Time) {
	var names []string
	for name, until := range h.aside {
		if !until.After(then) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(h.aside[a].Compare(h.aside[b]), cmp.Compare(a, b)) })
	for _, name := range names {
		delete(h.aside, name)
		h.queue.Add(name)
	}
}
