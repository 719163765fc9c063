package karpenter

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// candidate is a NodePool that may give the replacement.
type candidate struct {
	pool    *nodePool
	namedBy string // what named it; empty if nothing did
	spot    bool   // for another spot instance, see spotCandidates
}

// fallbackCandidates lists the pools to choose from, or says why there is none: the one that the
// operator has named, else every one that qualifies. If the name turns out to be wrong we
// do not guess another. The operator can name the source pool itself, as for a pool of spot
// and on-demand instances.
func (b *Backend) fallbackCandidates(ctx context.Context, lost lostNode) ([]candidate, interruption.Replacement, error) {
	name, namedBy := fallbackFor(lost, b.fallbacks)
	if name == "" {
		all, err := b.pools.list(ctx)
		if err != nil {
			return nil, interruption.Replacement{}, err
		}
		list, rejected := sortOut(all, lost)
		if len(list) == 0 {
			return nil, unsupported(noneSuits(lost, rejected)), nil
		}
		return list, interruption.Replacement{}, nil
	}
	if slices.Contains(lost.tried, name) {
		return nil, failedIn(name, ""), nil // there is no other
	}
	pool, err := b.pools.get(ctx, name)
	if err != nil {
		return nil, interruption.Replacement{}, err
	}
	if reason := unfit(pool, lost); reason != "" {
		return nil, failedIn(name, fmt.Sprintf("NodePool %s, named by %s, %s", name, namedBy, reason)), nil
	}
	return []candidate{{pool: pool, namedBy: namedBy}}, interruption.Replacement{}, nil
}

// fallbackFor is the pool that the operator has named to replace the node's, and where. Flags
// are --fallback-nodepool.
func fallbackFor(lost lostNode, flags map[string]string) (pool, by string) {
	if lost.source != nil && lost.source.Annotations[FallbackAnnotation] != "" {
		return lost.source.Annotations[FallbackAnnotation], "annotation " + FallbackAnnotation + " of NodePool " + lost.pool
	}
	return flags[lost.pool], "--fallback-nodepool"
}

// unfit says why the pool that the operator has named cannot give the replacement, or is
// empty. A nil pool does not exist.
func unfit(pool *nodePool, lost lostNode) string {
	if pool == nil {
		return "does not exist"
	}
	return objection(rules, pool, lost)
}

// sortOut tells the pools that qualify without being named from the others.
func sortOut(all []*nodePool, lost lostNode) (list []candidate, rejected []Weighed) {
	for _, pool := range all {
		if reason := objection(slices.Concat(rules, automaticRules), pool, lost); reason != "" {
			rejected = append(rejected, Weighed{Pool: pool.Name, Against: reason})
			continue
		}
		list = append(list, candidate{pool: pool})
	}
	return list, rejected
}

// noneSuits says why no pool qualifies.
func noneSuits(lost lostNode, rejected []Weighed) string {
	reason := "no NodePool is named to replace nodes of pool " + lost.pool + ", and none suits"
	if len(rejected) > 0 {
		against := make([]string, len(rejected))
		for i, w := range rejected {
			against[i] = w.Pool + " " + w.Against
		}
		reason += ": " + joinReasons(against)
	}
	return reason
}

func failedIn(pool, reason string) interruption.Replacement {
	return interruption.Replacement{Backend: provisioner.Karpenter, Pool: pool, State: provisioner.StateFailed, Reason: reason}
}

// rules hold for every pool. Each says why it cannot give the replacement, or nothing; the
// first objection counts.
var rules = []func(*nodePool, lostNode) string{
	isBroken,
	isDeleting,
	isStatic,
	hasNoNodeClass,
	isNotReady,
}

// automaticRules hold, on top of rules, for a pool that nobody has named.
var automaticRules = []func(*nodePool, lostNode) string{
	wasTried,
	isOwnPool,
	hasOtherNodeClass,
	hasNoOnDemand,
}

// objection is the first that the rules raise against the pool, or empty.
func objection(rules []func(*nodePool, lostNode) string, pool *nodePool, lost lostNode) string {
	for _, rule := range rules {
		if reason := rule(pool, lost); reason != "" {
			return reason
		}
	}
	return ""
}

func isBroken(pool *nodePool, _ lostNode) string {
	if pool.broken == "" {
		return ""
	}
	return "cannot be read: " + pool.broken
}

func isDeleting(pool *nodePool, _ lostNode) string {
	if pool.DeletionTimestamp.IsZero() {
		return ""
	}
	return "is being deleted"
}

// isStatic: Karpenter keeps such a pool's number of nodes, and would remove ours.
func isStatic(pool *nodePool, _ lostNode) string {
	if pool.Spec.Replicas == nil {
		return ""
	}
	return "is static (spec.replicas)"
}

func hasNoNodeClass(pool *nodePool, _ lostNode) string {
	ref := pool.Spec.Template.Spec.NodeClassRef
	if ref.Group != "" && ref.Kind != "" && ref.Name != "" {
		return ""
	}
	return "has no complete nodeClassRef"
}

func isNotReady(pool *nodePool, _ lostNode) string {
	ready := meta.FindStatusCondition(pool.Status.Conditions, "Ready")
	switch {
	case ready != nil && ready.Status == metav1.ConditionTrue:
		return ""
	case ready == nil || ready.Message == "":
		return "is not Ready"
	default:
		return "is not Ready: " + ready.Message
	}
}

func wasTried(pool *nodePool, lost lostNode) string {
	if !slices.Contains(lost.tried, pool.Name) {
		return ""
	}
	return "was tried"
}

// isOwnPool: we do not return to a pool at risk. On an interruption we do, as what the pool
// gives then is on demand.
func isOwnPool(pool *nodePool, lost lostNode) string {
	if pool.Name != lost.pool || lost.rec.Kind != interruption.RebalanceRecommendation {
		return ""
	}
	return "is the one that the node is to leave"
}

// hasOtherNodeClass: another kind of node class is another provider.
func hasOtherNodeClass(pool *nodePool, lost lostNode) string {
	if lost.source == nil || lost.source.broken != "" {
		return ""
	}
	ours, theirs := lost.source.Spec.Template.Spec.NodeClassRef, pool.Spec.Template.Spec.NodeClassRef
	if ours.Kind == "" || ours.Group == theirs.Group && ours.Kind == theirs.Kind {
		return ""
	}
	return "has another kind of node class, " + theirs.Kind
}

func hasNoOnDemand(pool *nodePool, _ lostNode) string {
	if constraintOn(capacityTypeLabel, pool.Spec.Template.Spec.Requirements).allows(onDemand) {
		return ""
	}
	return "has no on-demand instances"
}
