package karpenter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// rank makes an order in each of the pools, best first: by the pods that it covers, not
// having been left itself (on a rebalance recommendation), the same labels and taints as the source pool, a lower weight than that has and the
// highest of those, and name.
func (s situation) rank(list []candidate) []claimOrder {
	orders := make([]claimOrder, len(list))
	for i, c := range list {
		orders[i] = s.order(c)
	}
	slices.SortFunc(orders, func(a, b claimOrder) int {
		return cmp.Or(
			cmp.Compare(len(b.fit.need.Moving), len(a.fit.need.Moving)),
			first(!s.risky(a.pool), !s.risky(b.pool)),
			first(s.alike(a.pool), s.alike(b.pool)),
			first(s.below(a.pool), s.below(b.pool)),
			cmp.Compare(b.pool.Spec.Weight, a.pool.Spec.Weight),
			strings.Compare(a.pool.Name, b.pool.Name),
		)
	})
	return orders
}

// first puts what is true before what is not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func (s situation) order(c candidate) claimOrder {
	o := claimOrder{instance: s.rec.Instance, node: s.node, pool: c.pool, source: s.claim, tried: s.tried}
	o.fit = fitTo(newShape(c.pool, s.source, s.node), s.need)
	o.ask = requests(o.fit.need)
	// Which instance type it will be is Karpenter's choice: a cheap one that fits, as
	// the interrupted node's own type did. Its claim says what that has, with the kwok
	// provider only what pods may have of it; the Node that we are given is lean, and does not.
	o.size = o.ask
	if s.claim != nil {
		o.size = atLeast(atLeast(o.ask, s.claim.Status.Capacity), s.claim.Status.Allocatable)
	}
	o.until = s.protectedUntil(c.pool)
	o.remark = s.remark
	if n := o.fit.left(); n > 0 {
		if o.remark != "" {
			o.remark += "; "
		}
		o.remark += fmt.Sprintf("without %d of %d pods, which cannot run in pool %s: %s", n, len(s.need.Moving), c.pool.Name, o.fit.remark())
	}
	return o
}

// risky reports whether a pool that others have just left is no better a place for a node
// that is only at risk. On an interruption any pool that has room will do.
func (s situation) risky(pool *nodePool) bool {
	return s.rec.Kind == interruption.RebalanceRecommendation && s.left[pool.Name]
}

// alike reports whether the pool gives its nodes the labels and taints that the source
// pool does.
func (s situation) alike(pool *nodePool) bool {
	if s.source == nil || s.source.broken != "" {
		return false
	}
	return maps.Equal(ownLabels(s.source, s.node), ownLabels(pool, s.node)) &&
		slices.Equal(taintsOf(s.source), taintsOf(pool))
}

// ownLabels are the labels of the operator's own that a pool gives its nodes.
func ownLabels(pool *nodePool, node *corev1.Node) map[string]string {
	labels := maps.Clone(pool.Spec.Template.Metadata.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, customLabels(pool, node))
	return labels
}

func taintsOf(pool *nodePool) []string {
	var list []string
	for _, t := range pool.Spec.Template.Spec.Taints {
		list = append(list, t.ToString())
	}
	slices.Sort(list)
	return list
}

// below reports whether Karpenter prefers the source pool to this one.
func (s situation) below(pool *nodePool) bool {
	return s.source == nil || pool.Spec.Weight < s.source.Spec.Weight
}

// rebalanceWindow is how long a replacement may wait for pods where no deadline ends
// the waiting: two minutes to boot, and three for the pods to move.
const rebalanceWindow = 5 * time.Minute

// protectedUntil is until when a replacement in the pool has to be protected from
// consolidation: until our pods are there, at the longest to the end of the node, and
// not at all where Karpenter would not be faster than that. While an empty node is
// protected, Karpenter may move other nodes' healthy pods onto it.
func (s situation) protectedUntil(pool *nodePool) time.Time {
	end := s.rec.DeadlineTime()
	if end.IsZero() {
		end = time.Now().Add(rebalanceWindow)
	}
	after, ok := pool.consolidates()
	if !ok || after >= time.Until(end) {
		return time.Time{}
	}
	return end
}
