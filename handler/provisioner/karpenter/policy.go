package karpenter

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// RebalanceAnnotation on a NodePool says what to do on a rebalance recommendation for its
// nodes. It overrides the operator's choice for all nodes.
const RebalanceAnnotation = "spot-handler/rebalance"

// RebalancePolicy is the policy that the node's NodePool sets for rebalance recommendations, or empty.
// An invalid value counts as empty, and the NodePool gets an Event about it once. The NodePools are
// read at most every 10 s, however many callers ask. If they cannot be read, what was last known
// counts; without that there is a transient error. If Karpenter is not installed,
// or we have no permission to ask, there are no policies.
func (b *Backend) RebalancePolicy(node *corev1.Node) (interruption.RebalancePolicy, error) {
	name := node.Labels[nodePoolLabel]
	if name == "" {
		return "", nil
	}
	pools, err := b.pools.Get(context.Background(), "")
	if _, away := unavailable(err); err != nil && !away {
		return "", err
	}
	pool := poolNamed(pools, name)
	if pool == nil {
		return "", nil
	}
	value := interruption.RebalancePolicy(pool.Annotations[RebalanceAnnotation])
	if value == "" || slices.Contains(interruption.RebalancePolicies(), value) {
		return value, nil
	}
	var known []string
	for _, policy := range interruption.RebalancePolicies() {
		known = append(known, string(policy))
	}
	b.misunderstood(pool, reasonWrongPolicy, fmt.Sprintf("annotation %s is %s: want one of %s; --rebalance counts",
		RebalanceAnnotation, interruption.Clip(strconv.Quote(string(value))), strings.Join(known, ", ")))
	return "", nil
}

// misunderstood complains about an annotation of the pool, once.
func (b *Backend) misunderstood(pool *nodePool, reason, text string) {
	if b.said.First(pool.Name + ": " + text) {
		b.event("NodePool", pool.ObjectMeta, corev1.EventTypeWarning, reason, text)
		b.log.Warn().Str("nodepool", pool.Name).Str("reason", text).Msg("annotation of NodePool not understood")
	}
}
