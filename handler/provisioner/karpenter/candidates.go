package karpenter

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// candidate is a NodePool that may give the replacement.
type candidate struct {
	pool     *nodePool
	namedBy  string // what named it; empty if nothing did
	capacity string // spot for another spot instance, see spotCandidates; else it is left to the pool
	inVain   bool   // it has lately not launched the spot instance that it was asked for on a recommendation
}

// fallbackFor is the pool that the operator has named to replace the node's, and where; empty if
// there is none. Flags are --fallback-nodepool. The operator can name the source pool itself, as for
// a pool of spot and on-demand instances.
func fallbackFor(lost replacedNode, flags map[string]string) (pool, by string) {
	if pool = flags[lost.pool]; pool != "" {
		by = "--fallback-nodepool"
	}
	if lost.source != nil && lost.source.Annotations[FallbackAnnotation] != "" {
		pool, by = lost.source.Annotations[FallbackAnnotation], "annotation "+FallbackAnnotation+" of NodePool "+lost.pool
	}
	if pool != "" && len(validation.IsDNS1123Subdomain(pool)) > 0 {
		pool = interruption.Clip(strconv.Quote(pool)) // the name of no object
	}
	return pool, by
}

// fallbacks are those of the pools that may give a replacement that stays, and why the others may
// not: the pool that the operator has named, else every one that qualifies. If the name turns out to
// be wrong we do not guess another.
func (lost replacedNode) fallbacks(pools []*nodePool) (list []candidate, rejected []Weighed) {
	if lost.named == "" {
		for _, pool := range pools {
			if reason := objection(slices.Concat(rules, automaticRules), pool, lost); reason != "" {
				rejected = append(rejected, Weighed{Pool: pool.Name, Against: reason})
				continue
			}
			list = append(list, candidate{pool: pool})
		}
		return list, rejected
	}
	if slices.Contains(lost.tried, lost.named) {
		return nil, nil
	}
	pool, reason := poolNamed(pools, lost.named), "does not exist"
	if pool != nil {
		reason = objection(rules, pool, lost)
	}
	if reason != "" {
		reason = fmt.Sprintf("NodePool %s, named by %s, %s", lost.named, lost.namedBy, reason)
		return nil, []Weighed{{Pool: lost.named, Named: lost.namedBy, Against: reason}}
	}
	return []candidate{{pool: pool, namedBy: lost.namedBy}}, nil
}

// refusal is the answer if there are no fallbacks.
func (lost replacedNode) refusal(rejected []Weighed) interruption.Replacement {
	var against []string
	for _, w := range rejected {
		if lost.named != "" {
			return failedIn(w.Pool, w.Against)
		}
		against = append(against, w.Pool+" "+w.Against)
	}
	if lost.named != "" {
		return failedIn(lost.named, "")
	}
	reason := "no NodePool is named to replace nodes of pool " + lost.pool + ", and none suits"
	if len(against) > 0 {
		reason += ": " + joinReasons(against)
	}
	return unsupported(reason)
}

func failedIn(pool, reason string) interruption.Replacement {
	return interruption.Replacement{Backend: provisioner.Karpenter, Pool: pool, State: provisioner.StateFailed, Reason: reason}
}

// spotCandidates are those of the pools that may give another spot instance. On a recommendation
// these are the node's own and the one that the operator has named as its fallback or, if none is
// named, every one that qualifies: there is time for that, and if every recommendation were answered
// on demand a fleet would drift off spot. Otherwise it is the named one if that has nothing but spot
// instances: it is asked for others than were lost lately, and only then for any.
func (lost replacedNode) spotCandidates(pools []*nodePool) (list []candidate) {
	for _, pool := range pools {
		named := pool.Name == lost.named
		switch {
		case lost.spotFirst && lost.named != "" && !named && pool.Name != lost.pool:
			continue
		case lost.spotFirst:
		case !named, slices.Contains(lost.tried, pool.Name), hasNoOnDemand(pool, lost) == "":
			continue
		case len(lost.taken(newShape(pool, lost.source, lost.node))) == 0:
			continue
		}
		if objection(slices.Concat(rules, spotRules), pool, lost) == "" {
			list = append(list, candidate{pool: pool, capacity: spot})
		}
	}
	return list
}

// rules hold for every pool. Each says why it cannot give the replacement, or nothing; the
// first objection counts.
var rules = []func(*nodePool, replacedNode) string{
	isBroken,
	isDeleting,
	isStatic,
	hasNoNodeClass,
	isNotReady,
}

// automaticRules hold, on top of rules, for a pool that nobody has named.
var automaticRules = []func(*nodePool, replacedNode) string{
	wasTried,
	isOwnPool,
	hasOtherNodeClass,
	hasNoOnDemand,
}

// objection is the first that the rules raise against the pool, or empty.
func objection(rules []func(*nodePool, replacedNode) string, pool *nodePool, lost replacedNode) string {
	for _, rule := range rules {
		if reason := rule(pool, lost); reason != "" {
			return reason
		}
	}
	return ""
}

// when returns the reason if it holds, else an empty one.
func when(holds bool, reason string) string {
	if holds {
		return reason
	}
	return ""
}

func isBroken(pool *nodePool, _ replacedNode) string {
	return when(pool.broken != "", "cannot be read: "+pool.broken)
}

func isDeleting(pool *nodePool, _ replacedNode) string {
	return when(!pool.DeletionTimestamp.IsZero(), "is being deleted")
}

// isStatic: Karpenter keeps such a pool's number of nodes, and would remove ours.
func isStatic(pool *nodePool, _ replacedNode) string {
	return when(pool.Spec.Replicas != nil, "is static (spec.replicas)")
}

func hasNoNodeClass(pool *nodePool, _ replacedNode) string {
	ref := pool.Spec.Template.Spec.NodeClassRef
	return when(ref.Group == "" || ref.Kind == "" || ref.Name == "", "has no complete nodeClassRef")
}

func isNotReady(pool *nodePool, _ replacedNode) string {
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

func wasTried(pool *nodePool, lost replacedNode) string {
	return when(slices.Contains(lost.tried, pool.Name), "was tried")
}

// isOwnPool: we do not return to a pool at risk. On an interruption we do, as what the pool
// gives then is on demand.
func isOwnPool(pool *nodePool, lost replacedNode) string {
	return when(pool.Name == lost.pool && lost.rec.Kind == interruption.RebalanceRecommendation, "is the one that the node is to leave")
}

// hasOtherNodeClass: another kind of node class is another provider.
func hasOtherNodeClass(pool *nodePool, lost replacedNode) string {
	if lost.source == nil || lost.source.broken != "" {
		return ""
	}
	ours, theirs := lost.source.Spec.Template.Spec.NodeClassRef, pool.Spec.Template.Spec.NodeClassRef
	return when(ours.Kind != "" && (ours.Group != theirs.Group || ours.Kind != theirs.Kind), "has another kind of node class, "+theirs.Kind)
}

func hasNoOnDemand(pool *nodePool, _ replacedNode) string {
	capacity := constraintOn(capacityTypeLabel, pool.Spec.Template.Spec.Requirements)
	return when(!capacity.Allows(onDemand), "has no on-demand instances")
}

// spotRules hold, on top of rules, for a pool that is to give another spot instance.
var spotRules = []func(*nodePool, replacedNode) string{
	spotWasTried,
	hasOtherNodeClass,
	hasNoOtherSpot,
}

func spotWasTried(pool *nodePool, lost replacedNode) string {
	return when(slices.Contains(lost.tried, triedAs(pool.Name, spot)), "was tried")
}

func hasNoOtherSpot(pool *nodePool, lost replacedNode) string {
	return when(!lost.avoidRisk(newShape(pool, lost.source, lost.node)), "has no spot instances but those at risk")
}
