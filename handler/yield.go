package handler

import (
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

	// yieldCheck is when a node that waits is checked again if the burst goes on.
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
	left := time.Until(h.yieldsUntil(name, k.firstDue))
	if left <= 0 {
		return false
	}
	h.asideMu.Lock()
	if len(h.aside) == 0 {
		time.AfterFunc(min(left, yieldCheck), h.resume)
	}
	h.aside = append(h.aside, name)
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

// resume enqueues the nodes that were put aside.
func (h *Handler) resume() {
	h.asideMu.Lock()
	names := h.aside
	h.aside = nil
	h.asideMu.Unlock()
	for _, name := range names {
		h.queue.Add(name)
	}
}
