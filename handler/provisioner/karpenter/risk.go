package karpenter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
)

// taken are the offerings lost lately, and the node's own if EC2 takes it, of those that the shape
// allows.
func (lost replacedNode) taken(s *shape) []offerings.Offering {
	var taken []offerings.Offering
	for _, loss := range lost.lately {
		taken = append(taken, loss.Offering)
	}
	if own, ok := offerings.Of(lost.node); ok && offerings.Takes(lost.rec) {
		taken = append(taken, own)
	}
	have := slices.Concat(s.given, s.needed)
	types, zones := constraintOn(corev1.LabelInstanceTypeStable, have), constraintOn(corev1.LabelTopologyZone, have)
	return slices.DeleteFunc(taken, func(o offerings.Offering) bool { return !types.Allows(o.Type) || !zones.Allows(o.Zone) })
}

// avoidRisk narrows the shape to spot instances of other offerings than were lost lately and than
// the one at risk, or reports that the pool has none. Requirements cannot exclude one offering
// alone: it goes with its instance type or with its zone, all that were lost if that leaves any,
// or else at least the node's own. Few pools list their types: those that the node's own claim names
// are what such a pool has for its pods.
func (lost replacedNode) avoidRisk(s *shape) bool {
	kind, zone := lost.node.Labels[corev1.LabelInstanceTypeStable], lost.node.Labels[corev1.LabelTopologyZone]
	if kind == "" || zone == "" || s.need(requirement{Key: capacityTypeLabel, Operator: "In", Values: []string{spot}}) != "" {
		return false
	}
	have, claimed := slices.Concat(s.given, s.needed), []requirement(nil)
	if lost.claim != nil && leavesTypes(have, lost.claim.Spec.Requirements...) {
		claimed = slices.Clip(lost.claim.Spec.Requirements)
	}
	var types, zones []string
	for _, o := range lost.taken(s) {
		types = append(types, o.Type)
		if constraintOn(corev1.LabelInstanceTypeStable, claimed).Allows(o.Type) {
			zones = append(zones, o.Zone)
		}
	}
	others := []requirement{
		{Key: corev1.LabelInstanceTypeStable, Operator: "NotIn", Values: distinct(types)},
		{Key: corev1.LabelTopologyZone, Operator: "NotIn", Values: distinct(zones)},
		{Key: corev1.LabelInstanceTypeStable, Operator: "NotIn", Values: []string{kind}},
		{Key: corev1.LabelTopologyZone, Operator: "NotIn", Values: []string{zone}},
	}
	slices.SortStableFunc(others, func(a, b requirement) int {
		return trueFirst(leavesTypes(have, append(claimed, a)...), leavesTypes(have, append(claimed, b)...))
	})
	return slices.ContainsFunc(others, func(r requirement) bool {
		return len(r.Values) == 0 || leavesTypes(have, r) && s.need(r) == ""
	})
}

// leavesTypes reports whether enough instance types are left of those that are named, if any are.
func leavesTypes(have []requirement, more ...requirement) bool {
	types, least := constraintOn(corev1.LabelInstanceTypeStable, slices.Concat(have, more)), int64(1)
	for _, r := range have {
		if r.Key == corev1.LabelInstanceTypeStable {
			least = max(least, ptr.Deref(r.MinValues, 1))
		}
	}
	return types.In == nil || int64(len(types.Named())) >= least
}

// risky reports whether a node that is only at risk had better not go to the pool, which was
// hit lately. On an interruption any pool that has room will do.
func (lost replacedNode) risky(pool *nodePool) bool {
	return lost.rec.Kind == interruption.RebalanceRecommendation &&
		slices.ContainsFunc(lost.lately, func(l offerings.Loss) bool { return l.Pool == pool.Name })
}

// unsafe reports whether the order is of a spot instance in a pool that has lost too many.
func (lost replacedNode) unsafe(o claimOrder) bool {
	_, tooMany := lost.tooMany[o.pool.Name]
	return tooMany && (o.capacity == spot || hasNoOnDemand(o.pool, lost) != "")
}
