package karpenter

import (
	"context"
	"fmt"
	"slices"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// candidate is a NodePool that may give the replacement.
type candidate struct {
	pool    *nodePool
	namedBy string // empty where nobody has named it
}

// candidates lists the pools to choose from, or says why there is none: the one that
// the operator has named, else every one that qualifies. A name that turns out to be
// wrong is not made up for by a guess. The operator may name the source pool itself,
// as for a pool of spot and on-demand instances.
func (b *Backend) candidates(ctx context.Context, s situation) ([]candidate, interruption.Replacement, error) {
	name, namedBy := b.named(s)
	if name == "" {
		return b.automatic(ctx, s)
	}
	if slices.Contains(s.tried, name) {
		return nil, failedIn(name, ""), nil // there is no other
	}
	pool, err := b.pools.get(ctx, name)
	if err != nil {
		return nil, interruption.Replacement{}, err
	}
	reason := "does not exist"
	if pool != nil {
		reason = objection(rules, pool, s)
	}
	if reason != "" {
		return nil, failedIn(name, fmt.Sprintf("NodePool %s, named by %s, %s", name, namedBy, reason)), nil
	}
	return []candidate{{pool: pool, namedBy: namedBy}}, interruption.Replacement{}, nil
}

// named is the pool that the operator has named for the node's, and where.
func (b *Backend) named(s situation) (pool, by string) {
	if s.source != nil && s.source.Annotations[FallbackAnnotation] != "" {
		return s.source.Annotations[FallbackAnnotation], "annotation " + FallbackAnnotation + " of NodePool " + s.pool
	}
	return b.fallbacks[s.pool], "--fallback-nodepool"
}

// automatic lists every pool that qualifies without being named.
func (b *Backend) automatic(ctx context.Context, s situation) ([]candidate, interruption.Replacement, error) {
	all, err := b.pools.list(ctx)
	if err != nil {
		return nil, interruption.Replacement{}, err
	}
	var list []candidate
	var against []string
	for _, pool := range all {
		if reason := objection(slices.Concat(rules, automaticRules), pool, s); reason != "" {
			against = append(against, pool.Name+" "+reason)
			continue
		}
		list = append(list, candidate{pool: pool})
	}
	if len(list) > 0 {
		return list, interruption.Replacement{}, nil
	}
	reason := "no NodePool is named to replace nodes of pool " + s.pool + ", and none suits"
	if len(against) > 0 {
		reason += ": " + joinReasons(against)
	}
	return nil, unsupported(reason), nil
}

func failedIn(pool, reason string) interruption.Replacement {
	return interruption.Replacement{Backend: provisioner.Karpenter, Pool: pool, State: provisioner.StateFailed, Reason: reason}
}

// rule says why a pool cannot give the replacement, or nothing.
type rule func(pool *nodePool, s situation) string

// rules hold for every pool. The first objection counts.
var rules = []rule{
	isBroken,
	isDeleting,
	isStatic,
	hasNoNodeClass,
	isNotReady,
}

// automaticRules hold for a pool that nobody has named, on top of rules.
var automaticRules = []rule{
	wasTried,
	isLeft,
	hasOtherNodeClass,
	hasNoOnDemand,
}

// objection is the first that the rules have to the pool, or nothing.
func objection(rules []rule, pool *nodePool, s situation) string {
	for _, rule := range rules {
		if reason := rule(pool, s); reason != "" {
			return reason
		}
	}
	return ""
}

func isBroken(pool *nodePool, _ situation) string {
	if pool.broken == "" {
		return ""
	}
	return "cannot be read: " + pool.broken
}

func isDeleting(pool *nodePool, _ situation) string {
	if pool.DeletionTimestamp.IsZero() {
		return ""
	}
	return "is being deleted"
}

// isStatic: Karpenter keeps the number of such a pool's nodes, and takes ours away.
func isStatic(pool *nodePool, _ situation) string {
	if pool.Spec.Replicas == nil {
		return ""
	}
	return "is static (spec.replicas)"
}

func hasNoNodeClass(pool *nodePool, _ situation) string {
	ref := pool.Spec.Template.Spec.NodeClassRef
	if ref.Group != "" && ref.Kind != "" && ref.Name != "" {
		return ""
	}
	return "has no complete nodeClassRef"
}

func isNotReady(pool *nodePool, _ situation) string {
	ready := find(pool.Status.Conditions, "Ready")
	switch {
	case ready.isTrue():
		return ""
	case ready == nil || ready.Message == "":
		return "is not Ready"
	default:
		return "is not Ready: " + ready.Message
	}
}

func wasTried(pool *nodePool, s situation) string {
	if !slices.Contains(s.tried, pool.Name) {
		return ""
	}
	return "was tried"
}

// isLeft: a pool at risk is not gone back to. On an interruption it may be: what it
// gives then is on demand.
func isLeft(pool *nodePool, s situation) string {
	if pool.Name != s.pool || s.rec.Kind != interruption.RebalanceRecommendation {
		return ""
	}
	return "is the one that the node is to leave"
}

// hasOtherNodeClass: another kind of node class is another provider.
func hasOtherNodeClass(pool *nodePool, s situation) string {
	if s.source == nil || s.source.broken != "" {
		return ""
	}
	ours, theirs := s.source.Spec.Template.Spec.NodeClassRef, pool.Spec.Template.Spec.NodeClassRef
	if ours.Kind == "" || ours.Group == theirs.Group && ours.Kind == theirs.Kind {
		return ""
	}
	return "has another kind of node class, " + theirs.Kind
}

func hasNoOnDemand(pool *nodePool, _ situation) string {
	if constraintOn(capacityTypeLabel, pool.Spec.Template.Spec.Requirements).allows(onDemand) {
		return ""
	}
	return "has no on-demand instances"
}
