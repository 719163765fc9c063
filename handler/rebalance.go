package handler

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// RebalancePolicy says what is done on a rebalance recommendation.
type RebalancePolicy string

const (
	RebalanceIgnore  RebalancePolicy = "ignore"  // nothing
	RebalanceCordon  RebalancePolicy = "cordon"  // record and cordon, no drain
	RebalanceReplace RebalancePolicy = "replace" // drain as soon as a replacement is ready
)

// RebalancePolicies lists every policy.
func RebalancePolicies() []RebalancePolicy {
	return []RebalancePolicy{RebalanceIgnore, RebalanceCordon, RebalanceReplace}
}

// rebalancePolicy is what is done on a rebalance recommendation for the node.
func (h *Handler) rebalancePolicy(node *corev1.Node) RebalancePolicy {
	return h.opts.Rebalance
}

// rebalanceTurn says whether the drain of a recommended node may begin now, else when to
// look again.
func (h *Handler) rebalanceTurn(ctx context.Context, node *corev1.Node, rec interruption.Record) (begin bool, again time.Duration, err error) {
	return true, 0, nil
}
