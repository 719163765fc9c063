package karpenter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// RebalanceAnnotation on a NodePool says what to do on a rebalance recommendation for its
// nodes. It overrides the operator's choice for all nodes.
const RebalanceAnnotation = "spot-handler/rebalance"

// policyTimeout bounds the read of a pool that is not known yet. A recommendation has no
// deadline: it can wait that long.
const policyTimeout = 3 * time.Second

// policyCache keeps what the NodePools' annotations say.
type policyCache struct {
	mu     sync.Mutex
	byPool map[string]policy
}

type policy struct {
	value string
	err   error // nothing is known yet
	at    time.Time
	wrong string // the value that was complained about
}

// RebalancePolicy is what the node's NodePool asks for on a rebalance recommendation: one of
// allowed, or nothing. Another value counts as nothing, and is complained about once. The
// NodePool is read at most every 10 s, however many ask. If it cannot be read, its last
// known value counts; without one there is a transient error. If Karpenter is not installed,
// or we have no right to ask, there are no policies.
func (b *Backend) RebalancePolicy(node *corev1.Node, allowed []string) (string, error) {
	name := node.Labels[nodePoolLabel]
	if name == "" {
		return "", nil
	}
	b.policies.mu.Lock()
	known, ok := b.policies.byPool[name]
	b.policies.mu.Unlock()
	if ok && time.Since(known.at) < poolTTL {
		return known.value, known.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), policyTimeout)
	defer cancel()
	pool, err := b.pools.get(ctx, name)
	now := policy{at: time.Now(), wrong: known.wrong}
	_, away := unavailable(err)
	switch {
	case away, err == nil && pool == nil:
	case err != nil && ok && known.err == nil:
		now.value = known.value
	case err != nil:
		now.err = fmt.Errorf("read NodePool %q: %w", name, err)
	default:
		now.value = pool.Annotations[RebalanceAnnotation]
	}
	wrong := ""
	if now.value != "" && !slices.Contains(allowed, now.value) {
		wrong, now.value = now.value, ""
	}
	b.policies.mu.Lock()
	again := wrong == b.policies.byPool[name].wrong
	if now.err == nil {
		now.wrong = wrong
	}
	b.policies.byPool[name] = now
	b.policies.mu.Unlock()
	if wrong != "" && !again {
		text := fmt.Sprintf("annotation %s is %q: want one of %s; --rebalance counts", RebalanceAnnotation, wrong, strings.Join(allowed, ", "))
		b.events.pool(pool, reasonWrongPolicy, text)
		b.log.Warn().Str("nodepool", name).Str("reason", text).Msg("rebalance policy of NodePool not understood")
	}
	return now.value, now.err
}
