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

// withdrawRebalance takes the recommendation off a node, and undoes what it had set there.
// A scheduled event of the same instance stands, and waits for its time again.
func (h *Handler) withdrawRebalance(ctx context.Context, node *corev1.Node, rec interruption.Record, k *known, why string) (time.Duration, error) {
	rest, _, stands := rec.Withdraw(interruption.Notice{Kind: interruption.RebalanceRecommendation})
	if rec.Phase != interruption.Waiting {
		if !stands {
			tell(h.opts.Logger.Info(), node.Name, rec).Str("reason", why).Msg("rebalance recommendation dropped")
			return h.callOff(ctx, node, k, rec)
		}
		if _, done, err := h.opts.Drainer.CallOff(ctx, node.Name); err != nil {
			return 0, fmt.Errorf("call off drain: %w", err)
		} else if !done {
			return time.Second, nil // the drainer tells earlier
		}
	}
	var text any
	if stands {
		rest.Phase, rest.Ours, rest.Boot = interruption.Waiting, nil, ""
		rest.Begun, rest.Replacement, rest.Pods, rest.Ended = nil, nil, nil, nil
		text = rest.String()
	}
	patch, err := restorePatch(node, rec, text)
	if err != nil {
		return 0, fmt.Errorf("unmark node: %w", err)
	}
	_, err = h.opts.Nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case apierrors.IsConflict(err):
		return time.Millisecond, nil // changed by others meanwhile: look again
	case err != nil && !apierrors.IsNotFound(err):
		return 0, fmt.Errorf("unmark node: %w", err)
	}
	h.opts.Events.Canceled(node, rec)
	tell(h.opts.Logger.Info(), node.Name, rec).Str("reason", why).Msg("rebalance recommendation dropped")
	h.forget(node.Name)
	return 0, nil
}
