package karpenter

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// Weighed is what speaks for and against a NodePool as the one that replaces a node.
type Weighed struct {
	Pool string
	// Capacity is "spot" if the pool would give another spot instance.
	Capacity string
	// Named is where the operator has named the pool; empty if nobody has. Then no other is
	// weighed.
	Named string
	// Against is why the pool gives nothing; empty if it can.
	Against string
	// Better is why the pool comes before the next one; empty for the last that can.
	Better string
	// Without are the pods that cannot run there.
	Without []Misfit
	// Inherited are labels of the node that whoever put them there puts on the next one, too.
	Inherited map[string]string
}

// Misfit is why pods cannot run in a pool.
type Misfit struct {
	Reason string
	Pods   []string // namespace/name
}

// Weigh says in which pools Request would ask for a replacement, in that order, and after them
// why it would not ask in the others. It asks for nothing, and is for people: what Request
// answers says the same of one pool.
func (b *Backend) Weigh(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) ([]Weighed, error) {
	if cannot(node, rec) != "" || len(need.Moving) == 0 {
		return nil, nil
	}
	lost := lostNode{node: node, rec: rec, need: need, pool: node.Labels[nodePoolLabel], lately: b.offerings.Lost()}
	list, rejected, err := b.toWeigh(ctx, &lost)
	if err != nil {
		return nil, err
	}
	if lost.claim, err = b.sourceClaim(ctx, node); err != nil {
		return nil, err
	}
	if lost.need.Daemons, err = b.withDaemons(ctx, need.Daemons); err != nil {
		return nil, err
	}
	var can []Weighed
	var last claimOrder
	for _, o := range lost.rank(list) {
		w := Weighed{Pool: o.pool.Name, Capacity: o.capacity(), Named: o.namedBy, Without: o.fit.misfits(), Inherited: o.fit.inherited}
		if len(o.fit.need.Moving) == 0 {
			w.Against = "takes none of the pods"
		} else if w.Against, err = b.ledger.room(ctx, o.pool, o.name(), o.size); err != nil {
			return nil, err
		}
		if w.Against != "" {
			rejected = append(rejected, w)
			continue
		}
		if len(can) > 0 {
			_, can[len(can)-1].Better = lost.compare(last, o)
		}
		can, last = append(can, w), o
	}
	return append(can, rejected...), nil
}

// toWeigh are the pools to choose from, and those that are not.
func (b *Backend) toWeigh(ctx context.Context, lost *lostNode) (list []candidate, rejected []Weighed, err error) {
	if lost.source, err = b.pools.get(ctx, lost.pool); err != nil {
		return nil, nil, err
	}
	if list, err = b.spotCandidates(ctx, *lost); err != nil {
		return nil, nil, err
	}
	var fallbacks []candidate
	if name, by := fallbackFor(*lost, b.fallbacks); name != "" {
		var refused interruption.Replacement
		if fallbacks, refused, err = b.fallbackCandidates(ctx, *lost); refused.State != "" {
			rejected = []Weighed{{Pool: name, Named: by, Against: refused.Reason}}
		}
	} else {
		var all []*nodePool
		all, err = b.pools.list(ctx)
		fallbacks, rejected = sortOut(all, *lost)
	}
	return append(list, fallbacks...), rejected, err
}

// misfits are the pods that do not fit, by their reasons.
func (f fit) misfits() []Misfit {
	var all []Misfit
	for _, reason := range slices.Sorted(maps.Keys(f.out)) {
		all = append(all, Misfit{reason, f.out[reason]})
	}
	return all
}
