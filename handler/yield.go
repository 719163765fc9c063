package handler

import "time"

// Cordons come first: while a burst of notices is being written, a node's drain does not begin, for up to
// yieldFor. That finishes the cordons earlier, as drains take processor time from them, and FlowSchemas give
// out none of that. No drain is late: a minute for the replacement to boot, and half a minute of grace, still
// fit. performance.md has the figures.
const (
	yieldFor = 30 * time.Second

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
	left := yieldFor - time.Since(k.firstDue)
	if left <= 0 || h.accepting.Load() < burst {
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
