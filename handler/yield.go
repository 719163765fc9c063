package handler

import (
	"time"
)

// The fast lane comes first: while notices are being written, a node's drain does not begin,
// for up to yieldFor. That finishes the cordons of a burst some seconds earlier, and no drain is
// late: a minute for the replacement to boot, and half a minute of grace, still fit. With 5,000
// notices at once, the last cordon came after 1.02 × the time of a raw loop; with 15 s, after
// which the first drains were in the way, 1.91. That is processor time, of which FlowSchemas give
// out none: it was measured as an administrator, whom the API server lets wait for nobody.
const (
	yieldFor = 20 * time.Second

	// yieldCheck is when a node that waits is looked at again if notices go on being written. A
	// thousand that were looked at all the time took 0.16 s of processor time from a burst.
	yieldCheck = 2 * time.Second
)

// yields puts a node aside while notices are being written, if its drain can wait.
func (h *Handler) yields(name string) bool {
	k := h.memory.of(name)
	if k.first.IsZero() {
		k.first = time.Now()
	}
	left := yieldFor - time.Since(k.first)
	if left <= 0 || h.accepting.Load() == 0 {
		return false
	}
	h.asideMu.Lock()
	if len(h.aside) == 0 {
		time.AfterFunc(min(left, yieldCheck), h.resume)
	}
	h.aside = append(h.aside, name)
	h.asideMu.Unlock()
	if h.accepting.Load() == 0 { // by now
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
