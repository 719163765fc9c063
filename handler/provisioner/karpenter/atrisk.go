package karpenter

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
)

// What replaces a node by another spot instance: if it is only recommended for rebalance, as there is
// time for that, and if every recommendation were answered on demand a fleet would drift off spot;
// or if the operator has named a pool that has no other.

// What Options.RebalanceCapacity can be.
const (
	SpotFirst = "spot-first" // another spot instance, else as on a notice
	Fallback  = "fallback"   // as on a notice
)

// RebalanceCapacities lists what Options.RebalanceCapacity can be.
func RebalanceCapacities() []string { return []string{SpotFirst, Fallback} }

// spotCandidates lists the pools that may give another spot instance. On a recommendation these are
// the node's own and the one that the operator has named as its fallback or, if none is named,
// every one that qualifies. Otherwise it is the named one if that has nothing but spot instances:
// it is asked for others than were lost lately, and only then for any.
func (b *Backend) spotCandidates(ctx context.Context, lost lostNode) ([]candidate, error) {
	atRisk := lost.rec.Kind == interruption.RebalanceRecommendation && b.spotFirst
	var pools []*nodePool
	switch name, _ := fallbackFor(lost, b.fallbacks); {
	case name != "" && !atRisk && slices.Contains(lost.tried, name): // for any
	case name != "":
		named, err := b.pools.get(ctx, name)
		if err != nil {
			return nil, err
		}
		if atRisk {
			pools = append(pools, lost.source)
		}
		if again := !atRisk || lost.pool != name; again && named != nil && (atRisk || hasNoOnDemand(named, lost) != "") {
			pools = append(pools, named)
		}
	case atRisk:
		var err error
		if pools, err = b.pools.list(ctx); err != nil {
			return nil, err
		}
	}
	var list []candidate
	for _, pool := range pools {
		if pool == nil || objection(slices.Concat(rules, spotRules), pool, lost) != "" || !atRisk && len(lost.taken(newShape(pool, lost.source, lost.node))) == 0 {
			continue
		}
		list = append(list, candidate{pool: pool, spot: true})
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

// taken are the offerings lost lately, and the node's own if EC2 takes it, of those that the shape
// allows.
func (lost lostNode) taken(s *shape) []offerings.Offering {
	var taken []offerings.Offering
	for _, loss := range lost.lately {
		taken = append(taken, loss.Offering)
	}
	if own, ok := offerings.Of(lost.node); ok && offerings.Takes(lost.rec) {
		taken = append(taken, own)
	}
	have := slices.Concat(s.given, s.needed)
	types, zones := constraintOn(corev1.LabelInstanceTypeStable, have), constraintOn(corev1.LabelTopologyZone, have)
	return slices.DeleteFunc(taken, func(o offerings.Offering) bool { return !types.allows(o.Type) || !zones.allows(o.Zone) })
}

// avoidRisk narrows the shape to spot instances of other offerings than were lost lately and than
// the one at risk, or reports that the pool has none. Requirements cannot exclude one offering
// alone: it goes with its instance type or with its zone, all that were lost if that leaves any,
// or else at least the node's own.
func (lost lostNode) avoidRisk(s *shape) bool {
	kind, zone := lost.node.Labels[corev1.LabelInstanceTypeStable], lost.node.Labels[corev1.LabelTopologyZone]
	if kind == "" || zone == "" || s.need(requirement{Key: capacityTypeLabel, Operator: "In", Values: []string{spot}}) != "" {
		return false
	}
	var types, zones []string
	for _, o := range lost.taken(s) {
		types, zones = append(types, o.Type), append(zones, o.Zone)
	}
	for _, other := range []requirement{
		{Key: corev1.LabelInstanceTypeStable, Operator: "NotIn", Values: distinct(types)},
		{Key: corev1.LabelTopologyZone, Operator: "NotIn", Values: distinct(zones)},
		{Key: corev1.LabelInstanceTypeStable, Operator: "NotIn", Values: []string{kind}},
		{Key: corev1.LabelTopologyZone, Operator: "NotIn", Values: []string{zone}},
	} {
		if len(other.Values) == 0 || s.need(other) == "" {
			return true
		}
	}
	return false
}

func distinct(values []string) []string {
	slices.Sort(values)
	return slices.Compact(values)
}
