package handler

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// withdraw judges a notice that takes back an earlier one. What then has to be undone is
// the reconciling process's to do: the record says so by Canceled where nothing else
// stands, and by the phase Waiting where the time of what stands has not come yet.
func (h *Handler) withdraw(old interruption.Record, has bool, n interruption.Notice) (interruption.Record, interruption.Verdict) {
	if !has {
		return interruption.Record{}, interruption.Ignored
	}
	rest, found, left := old.Withdraw(n)
	switch {
	case !found, old.Canceled, old.Phase == interruption.Released:
		return old, interruption.Duplicate
	case !left:
		rest.Canceled = true
	case h.waitsAgain(old, rest):
		rest.Phase = interruption.Waiting
	}
	return rest, interruption.Accepted
}

// waitsAgain reports whether it was a scheduled event that had a node drained, and what
// stands now is not due: that event is withdrawn, or put off.
func (h *Handler) waitsAgain(old, now interruption.Record) bool {
	return old.Phase != interruption.Released && h.scheduledDue(old) && !h.scheduledDue(now) && !now.Kind.Certain()
}

// revive is the record of a notice that comes while its Node is still being undone: what
// was withdrawn does not stand beside it.
func (h *Handler) revive(node *corev1.Node, old interruption.Record, n interruption.Notice) (interruption.Record, interruption.Verdict) {
	if past := interruption.PastOf(old); past.Has(n) {
		return old, interruption.Duplicate
	}
	rec := interruption.NewRecord(n)
	rec.Ours, rec.Hooks, rec.Past = old.Ours, append(rec.Hooks, old.Hooks...), interruption.PastOf(old)
	if h.waits(node, rec) {
		rec.Phase = interruption.Waiting
	}
	return rec, interruption.Accepted
}

// standDown undoes a node whose time has not come after all: nothing more is evicted,
// surged pods go back to their ReplicaSets, and what was set on the Node goes. The record
// stays, and waits; was is what people are told of.
func (h *Handler) standDown(ctx context.Context, node *corev1.Node, k *known, was, rec interruption.Record) (time.Duration, error) {
	k.off = true
	result, done, err := h.opts.Drainer.CallOff(ctx, node.Name)
	if err != nil {
		return 0, fmt.Errorf("call off drain: %w", err)
	}
	if !done {
		return time.Second, nil // the drainer tells earlier
	}
	waits := undone(rec)
	waits.Ours = nil
	patched, again, err := h.restore(ctx, node, rec, waits.String())
	if again > 0 || err != nil || patched == nil {
		return again, err
	}
	if rec.Ended == nil && k.final == nil && len(rec.Ours) > 0 {
		h.metrics.ended(rec, resultCanceled, time.Now())
	}
	if returned(node, was) {
		h.opts.Events.Returned(node, was)
		tell(h.opts.Logger.Info(), node.Name, waits).Int("pods", result.Total).Msg("instance is back, node as it was, next drain waits")
	} else {
		h.opts.Events.Canceled(node, was)
		tell(h.opts.Logger.Info(), node.Name, waits).Int("pods", result.Total).Msg("drain called off, node as it was, next drain waits")
	}
	h.opts.Drainer.Forget(node.Name)
	h.mu.Lock()
	defer h.mu.Unlock()
	*k = known{rec: waits, resourceVersion: patched.ResourceVersion, first: k.first}
	return 0, nil // the change of the Node comes back
}
