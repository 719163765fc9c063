package handler

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// waits reports whether a notice is only recorded when it is accepted: the node is not
// cordoned before its time, or its turn, has come, as [Handler.turn] says later.
func (h *Handler) waits(node *corev1.Node, rec interruption.Record) bool {
	if h.scheduledDue(rec) {
		return false
	}
	switch rec.Kind {
	case interruption.ScheduledEvent:
		return true
	case interruption.RebalanceRecommendation:
		return h.rebalancePolicy(node) == RebalanceReplace
	}
	return false
}

// turn says whether a node that waits may begin, else when to look again if nothing
// happens before.
func (h *Handler) turn(ctx context.Context, node *corev1.Node, rec interruption.Record) (begin bool, again time.Duration, err error) {
	if h.scheduledDue(rec) {
		return true, 0, nil
	}
	switch rec.Kind {
	case interruption.ScheduledEvent:
		return false, until(h.scheduledStart(rec)), nil
	case interruption.RebalanceRecommendation:
		begin, again, err = h.rebalanceTurn(ctx, node, rec)
		if start := h.scheduledStart(rec); !start.IsZero() && !begin && (again == 0 || until(start) < again) {
			again = until(start) // whichever comes first
		}
		return begin, again, err
	}
	return true, 0, nil
}

// wait leaves a node alone until its time or its turn has come, and marks it then.
func (h *Handler) wait(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record) (time.Duration, error) {
	begin, again, err := h.turn(ctx, node, rec)
	if err != nil {
		return 0, fmt.Errorf("wait for turn: %w", err)
	}
	if !begin {
		return again, nil
	}
	now := time.Now().UTC()
	rec.Begun = &now
	return h.mark(ctx, node, k, rec)
}

// mark cordons a node whose wait is over, and writes that its interruption has begun.
func (h *Handler) mark(ctx context.Context, node *corev1.Node, k *known, rec interruption.Record) (time.Duration, error) {
	rec.Phase = interruption.Noticed
	patch, err := markPatch(node, &rec)
	if err != nil {
		return 0, fmt.Errorf("mark node: %w", err)
	}
	patched, err := h.opts.Nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case apierrors.IsConflict(err):
		return time.Millisecond, nil // changed by others meanwhile: look again
	case err != nil:
		return 0, fmt.Errorf("mark node: %w", err)
	}
	h.mu.Lock()
	k.rec, k.resourceVersion = rec, patched.ResourceVersion
	h.mu.Unlock()
	h.opts.Events.Noticed(node, rec)
	tell(h.opts.Logger.Info(), node.Name, rec).Str("phase", string(rec.Phase)).Msg("wait is over, node cordoned")
	return 0, nil // the change of the Node comes back
}

// acceptPatch is the JSON merge patch by which a notice is accepted. One that leaves the
// node waiting, or has it undone, is only recorded.
func acceptPatch(node *corev1.Node, rec *interruption.Record) ([]byte, error) {
	if rec.Phase != interruption.Waiting && !rec.Canceled {
		return markPatch(node, rec)
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": node.ResourceVersion,
		"annotations":     map[string]string{interruption.Annotation: rec.String()},
	}})
}
