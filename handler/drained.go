package handler

import (
	"errors"
	"time"

	"spot-handler/handler/nodes"
)

// sweepAfter is how long after the end of a drain its node must still be there before its surged pods are put
// back: EC2 was supposed to end it.
const sweepAfter = 10 * time.Minute

// Drained reports whether the node's pods are being moved, or the node is about to go.
func (h *Handler) Drained(name string) bool {
	node, ok := h.opts.Index.Get(name)
	if !ok {
		return true // gone, or another process's
	}
	rec, err := nodes.Record(node)
	switch {
	case errors.Is(err, nodes.ErrNoRecord):
		return false
	case err != nil:
		return true // somebody has to look at it first
	case waitsUnmarked(rec):
		return false
	case h.opts.CordonOnly: // an earlier process has surged them
		return false
	}
	return !rec.Phase.Over() || rec.Ended.IsZero() || time.Since(rec.Ended) < sweepAfter
}
