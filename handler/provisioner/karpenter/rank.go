package karpenter

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// rank makes an order in each of the pools, best first, as preferences say.
func (lost replacedNode) rank(list []candidate) []claimOrder {
	orders := make([]claimOrder, len(list))
	for i, c := range list {
		orders[i] = lost.orderIn(c)
	}
	slices.SortFunc(orders, func(a, b claimOrder) int {
		order, _ := lost.compare(a, b)
		return order
	})
	return orders
}

// preferences say which of two orders is better; the first that tells them apart decides.
var preferences = []struct {
	why     string // of the better one's pool
	compare func(lost replacedNode, a, b claimOrder) int
}{
	{"takes more of the pods", func(_ replacedNode, a, b claimOrder) int {
		return cmp.Compare(len(b.fit.need.Moving), len(a.fit.need.Moving))
	}},
	{"has not lost too many nodes", having(func(lost replacedNode, o claimOrder) bool { return !lost.unsafe(o) })},
	{"has not just failed to launch a spot instance", having(func(_ replacedNode, o claimOrder) bool { return !o.inVain })},
	// Only on a rebalance recommendation.
	{"can give another spot instance", having(func(_ replacedNode, o claimOrder) bool { return o.capacity == spot })},
	{"is the node's own", having(func(lost replacedNode, o claimOrder) bool {
		return o.capacity == spot && o.pool.Name == lost.pool
	})},
	{"was not hit lately", having(func(lost replacedNode, o claimOrder) bool { return !lost.risky(o.pool) })},
	{"has the labels and taints of the node's pool", having(func(lost replacedNode, o claimOrder) bool { return lost.alike(o.pool) })},
	{"has a lower weight than the node's pool", having(func(lost replacedNode, o claimOrder) bool { return lost.below(o.pool) })},
	{"has a higher weight", func(_ replacedNode, a, b claimOrder) int { return cmp.Compare(b.pool.Spec.Weight, a.pool.Spec.Weight) }},
	{"comes first by name", func(_ replacedNode, a, b claimOrder) int { return strings.Compare(a.pool.Name, b.pool.Name) }},
}

// having puts an order of which is is true before one of which it is not.
func having(is func(lost replacedNode, o claimOrder) bool) func(lost replacedNode, a, b claimOrder) int {
	return func(lost replacedNode, a, b claimOrder) int { return trueFirst(is(lost, a), is(lost, b)) }
}

// trueFirst puts what is true before what is not.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// compare puts the better of two orders first, and says why it is better.
func (lost replacedNode) compare(a, b claimOrder) (order int, why string) {
	for _, p := range preferences {
		if order := p.compare(lost, a, b); order != 0 {
			return order, p.why
		}
	}
	return 0, ""
}

func (lost replacedNode) orderIn(c candidate) claimOrder {
	if lost.backTo != "" {
		return lost.returnOrder(c)
	}
	o := claimOrder{candidate: c, lost: lost, until: lost.protectedUntil(c), remark: lost.remark}
	s := newShape(c.pool, lost.source, lost.node)
	if c.capacity == spot {
		lost.avoidRisk(s)
	} else {
		s.preferOnDemand()
	}
	o.fit = fitTo(s, lost.need)
	o.ask = lost.ask(s, o.fit.need)
	o.sized()
	if n := len(lost.need.Moving) - len(o.fit.need.Moving); n > 0 {
		without := fmt.Sprintf("without %d of %d pods, which cannot run in pool %s: %s", n, len(lost.need.Moving), c.pool.Name, o.fit.remark())
		o.remark = strings.TrimPrefix(o.remark+"; "+without, "; ")
	}
	return o
}

// alike reports whether the pool gives its nodes the labels and taints that the source
// pool does.
func (lost replacedNode) alike(pool *nodePool) bool {
	if lost.source == nil || lost.source.broken != "" {
		return false
	}
	return maps.Equal(ownLabels(lost.source, lost.node), ownLabels(pool, lost.node)) &&
		slices.Equal(taintsOf(lost.source), taintsOf(pool))
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
func (lost replacedNode) below(pool *nodePool) bool {
	return lost.source == nil || pool.Spec.Weight < lost.source.Spec.Weight
}

// rebalanceWindow is how long a replacement can wait for pods if no deadline ends the wait:
// two minutes to boot, and three for the pods to move.
const rebalanceWindow = 5 * time.Minute

// protectedUntil is how long a replacement in the pool has to be protected from
// consolidation: until our pods are there, at most until the end of the interrupted node,
// and not at all if Karpenter would not be faster than that, unless it is held afterwards. While an
// empty node is protected, Karpenter might move other nodes' healthy pods onto it.
func (lost replacedNode) protectedUntil(c candidate) time.Time {
	end := lost.rec.Deadline
	if end.IsZero() {
		end = time.Now().Add(rebalanceWindow)
	}
	if lost.isHeld(c) {
		return end
	}
	after, ok := c.pool.consolidates()
	if !ok || after >= time.Until(end) {
		return time.Time{}
	}
	return end
}
