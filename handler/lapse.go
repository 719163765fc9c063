package handler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// withdrawRebalance takes the recommendation off a node, and undoes what it had set there.
// A scheduled event of the same instance stands, and waits for its time again.
func (h *Handler) withdrawRebalance(ctx context.Context, node *corev1.Node, rec interruption.Record, k *known, why string) (time.Duration, error) {
	rest, _, stands := rec.Withdraw(interruption.Notice{Kind: interruption.RebalanceRecommendation})
	if !k.off { // else it was said when that began
		tell(h.opts.Logger.Info(), node.Name, rec).Str("reason", why).Msg("rebalance recommendation dropped")
	}
	h.leaveLine(node.Name)
	if !stands {
		return h.callOff(ctx, node, k, rec)
	}
	rest.Phase = interruption.Waiting
	return h.standDown(ctx, node, k, rec, rest)
}
