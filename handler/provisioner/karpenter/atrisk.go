package karpenter

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// What replaces a node that is only recommended for rebalance. EC2 says so of one offering, an
// instance type in a zone, and there is time to ask for another: if every recommendation were
// answered on demand, a fleet would drift off spot.

// What Options.RebalanceCapacity can be.
const (
	SpotFirst = "spot-first" // another spot instance, else as on a notice
	Fallback  = "fallback"   // as on a notice
)

// RebalanceCapacities lists what Options.RebalanceCapacity can be.
func RebalanceCapacities() []string { return []string{SpotFirst, Fallback} }

// spotCandidates lists the pools that may give another spot instance: the node's own and the one
// that the operator has named as its fallback or, if none is named, every one that qualifies.
func (b *Backend) spotCandidates(ctx context.Context, lost lostNode) ([]candidate, error) {
	if lost.rec.Kind != interruption.RebalanceRecommendation || !b.spotFirst {
		return nil, nil
	}
	var pools []*nodePool
	if name, _ := fallbackFor(lost, b.fallbacks); name != "" {
		named, err := b.pools.get(ctx, name)
		if err != nil {
			return nil, err
		}
		if pools = []*nodePool{lost.source}; lost.pool != name {
			pools = append(pools, named)
		}
	} else {
		var err error
		if pools, err = b.pools.list(ctx); err != nil {
			return nil, err
		}
	}
	var list []candidate
	for _, pool := range pools {
		if pool != nil && objection(slices.Concat(rules, spotRules), pool, lost) == "" {
			list = append(list, candidate{pool: pool, spot: true})
		}
	}
	return list, nil
}

// spotRules hold, on top of rules, for a pool that is to give another spot instance.
var spotRules = []func(*nodePool, lostNode) string{
	spotWasTried,
	hasOtherNodeClass,
	hasNoOtherSpot,
}

func spotWasTried(pool *nodePool, lost lostNode) string {
	if !slices.Contains(lost.tried, triedAs(pool.Name, spot)) {
		return ""
	}
	return "was tried"
}

func hasNoOtherSpot(pool *nodePool, lost lostNode) string {
	if lost.avoidRisk(newShape(pool, lost.source, lost.node)) {
		return ""
	}
	return "has no spot instances but those at risk"
}

// avoidRisk narrows the shape to spot instances of other offerings than the one at risk, or
// reports that the pool has none. Requirements cannot exclude one offering alone: it goes with
// its instance type, and that with others that were hit lately, or else with its zone.
func (lost lostNode) avoidRisk(s *shape) bool {
	kind, zone := lost.node.Labels[corev1.LabelInstanceTypeStable], lost.node.Labels[corev1.LabelTopologyZone]
	if kind == "" || zone == "" || s.need(requirement{Key: capacityTypeLabel, Operator: "In", Values: []string{spot}}) != "" {
		return false
	}
	for _, other := range []requirement{
		{Key: corev1.LabelInstanceTypeStable, Operator: "NotIn", Values: append([]string{kind}, lost.hit.typesBut(kind)...)},
		{Key: corev1.LabelInstanceTypeStable, Operator: "NotIn", Values: []string{kind}},
		{Key: corev1.LabelTopologyZone, Operator: "NotIn", Values: []string{zone}},
	} {
		if s.need(other) == "" {
			return true
		}
	}
	return false
}

// hit is what a node that had to be replaced was.
type hit struct{ pool, instanceType string }

// noteHit remembers that the node has to be replaced.
func (b *Backend) noteHit(node *corev1.Node) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hitAt[hit{node.Labels[nodePoolLabel], node.Labels[corev1.LabelInstanceTypeStable]}] = time.Now()
}

// hitFor is how long a pool counts as hit. Of interruptions that come together, nine in ten
// fall within 3 minutes of each other. Karpenter itself avoids an unavailable kind of
// instance for 3 minutes.
const hitFor = 10 * time.Minute

// hits are the pools and the instance types whose nodes had to be replaced lately.
type hits struct{ pools, types map[string]bool }

func (b *Backend) hitLately() hits {
	b.mu.Lock()
	defer b.mu.Unlock()
	recent := hits{map[string]bool{}, map[string]bool{}}
	for h, at := range b.hitAt {
		if time.Since(at) >= hitFor {
			delete(b.hitAt, h)
			continue
		}
		recent.pools[h.pool], recent.types[h.instanceType] = true, true
	}
	return recent
}

// typesBut are the types that were hit, without one and in order.
func (h hits) typesBut(one string) []string {
	var types []string
	for t := range h.types {
		if t != one && t != "" {
			types = append(types, t)
		}
	}
	slices.Sort(types)
	return types
}
