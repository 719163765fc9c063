package handler

import (
	"context"
	"errors"
	"time"

	smithytime "github.com/aws/smithy-go/time"

	"spot-handler/handler/nodes"
)

const (
	// sweepEvery is how often we look for surged pods that nobody drains. The process that cancels a drain
	// puts them back; this is for those that no process has seen.
	sweepEvery = 10 * time.Minute
	// sweepRetry is when to try again after an error.
	sweepRetry = 10 * time.Second
	// sweepAfter is how long after the end of a drain its node must still be there before we
	// put its surged pods back: EC2 was supposed to end it.
	sweepAfter = 10 * time.Minute
)

// sweep puts back surged pods whose nodes nobody drains.
func (h *Handler) sweep(ctx context.Context) error {
	for {
		wait := sweepEvery
		if err := h.opts.Drainer.Sweep(ctx, h.opts.Node, h.drained); err != nil && ctx.Err() == nil {
			h.opts.Logger.Warn().Err(err).Msg("look for surged pods that nobody drains")
			wait = sweepRetry
		}
		if smithytime.SleepWithContext(ctx, wait) != nil {
			return nil
		}
	}
}

// drained reports whether the node's pods are being moved, or the node is about to go.
func (h *Handler) drained(name string) bool {
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
