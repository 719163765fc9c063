package handler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// canceled reports whether the interruption is called off, by somebody or by EC2 itself.
func canceled(node *corev1.Node, rec interruption.Record) bool {
	return rec.Canceled || node.Annotations[interruption.CancelAnnotation] == "true"
}

// callOff undoes an interruption: nothing more is evicted, surged pods go back to their
// ReplicaSets, then the record goes from the Node with what it had set. The record goes
// last, so that a process which is killed in between is followed by one that goes on.
func (h *Handler) callOff(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record) (time.Duration, error) {
	k.off = true
	result, done, err := h.opts.Drainer.CallOff(ctx, node.Name)
	if err != nil {
		return 0, fmt.Errorf("call off drain: %w", err)
	}
	if !done {
		return time.Second, nil // the drainer tells earlier
	}
	patched, again, err := h.restore(ctx, node, rec, nil)
	if again > 0 || err != nil {
		return again, err
	}
	if !rec.Phase.Over() && k.final == nil && rec.Phase != interruption.Waiting {
		h.metrics.ended(rec, resultCanceled, time.Now())
	}
	if returned(node, rec) {
		h.opts.Events.Returned(node, rec)
		tell(h.opts.Logger.Info(), node.Name, rec).Int("pods", result.Total).Msg("instance is back, node as it was")
	} else {
		h.opts.Events.Canceled(node, rec)
		tell(h.opts.Logger.Info(), node.Name, rec).Int("pods", result.Total).Msg("interruption called off, node as it was")
	}
	h.forget(node.Name)
	if patched != nil { // else the record would be seen once more, and its end counted again
		h.remember(node.Name).resourceVersion = patched.ResourceVersion
	}
	return 0, nil // the change of the Node comes back, and the rest is forgotten
}

// restore undoes what a record has set on its Node, and writes another one's text in its
// place, or nothing. The Node is nil where there is none any more; again says that others
// have changed it meanwhile, and when to look.
func (h *Handler) restore(ctx context.Context, node *corev1.Node, rec interruption.Record, text any) (patched *corev1.Node, again time.Duration, err error) {
	patch, err := restorePatch(node, rec, text)
	if err != nil {
		return nil, 0, fmt.Errorf("unmark node: %w", err)
	}
	patched, err = h.opts.Nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsConflict(err):
		return nil, time.Millisecond, nil
	case apierrors.IsNotFound(err):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("unmark node: %w", err)
	}
	return patched, 0, nil
}

// recordRemoved stops the drain of a Node from which somebody has taken the record. What
// had been set on the Node stays: who takes the record away takes the Node over.
func (h *Handler) recordRemoved(ctx context.Context, name string, k *known) (time.Duration, error) {
	if k.rec.Phase == "" || k.rec.Phase.Over() || k.rec.Phase == interruption.Waiting && len(k.rec.Ours) == 0 {
		h.forget(name)
		return 0, nil
	}
	k.off = true
	_, done, err := h.opts.Drainer.CallOff(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("call off drain: %w", err)
	}
	if !done {
		return time.Second, nil
	}
	h.metrics.ended(k.rec, resultCanceled, time.Now())
	tell(h.opts.Logger.Warn(), name, k.rec).Msg("record removed by somebody else, drain stopped")
	h.forget(name)
	return 0, nil
}

const (
	// sweepEvery is how often surged pods are looked for that nobody drains. They are
	// put back by who calls a drain off; this is for what no process has seen.
	sweepEvery = 10 * time.Minute
	// sweepRetry is when that is tried again after an error.
	sweepRetry = 10 * time.Second
	// sweepAfter is how long after the end of a drain its node must still be there for
	// its surged pods to be put back: EC2 was to end it.
	sweepAfter = 10 * time.Minute
)

// sweep puts surged pods back whose nodes nobody drains.
func (h *Handler) sweep(ctx context.Context) error {
	for {
		wait := sweepEvery
		if err := h.opts.Drainer.Sweep(ctx, h.opts.Node, h.drained); err != nil && ctx.Err() == nil {
			h.opts.Logger.Warn().Err(err).Msg("look for surged pods that nobody drains")
			wait = sweepRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// drained reports whether the node's pods are being moved, or the node is about to go.
func (h *Handler) drained(name string) bool {
	node, ok := h.opts.Index.Get(name)
	if !ok {
		return true // gone, or another process's
	}
	rec, has, err := recordOf(node)
	switch {
	case err != nil:
		return true // somebody has to look at it first
	case !has, rec.Phase == interruption.Waiting && len(rec.Ours) == 0:
		return false
	case h.opts.CordonOnly: // an earlier process has surged them
		return false
	}
	return !rec.Phase.Over() || rec.Ended == nil || time.Since(*rec.Ended) < sweepAfter
}
