package karpenter

import (
	"context"
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
	lost, err := b.lose(ctx, node, rec, need)
	if err != nil {
		return nil, err
	}
	r, err := b.rank(ctx, lost)
	if err != nil {
		return nil, err
	}
	all, err := b.weigh(ctx, r)
	if err == nil && !slices.ContainsFunc(all, Weighed.taken) && r.hasElsewhere() {
		all, err = b.weigh(ctx, r.withoutElsewhere())
	}
	return all, err
}

// taken reports whether Request would ask for a replacement in the pool.
func (w Weighed) taken() bool { return w.Against == "" }

// weigh returns the orders that have room, in their order, and after them those that come to nothing
// and the pools that were rejected before.
func (b *Backend) weigh(ctx context.Context, r ranking) ([]Weighed, error) {
	var pools []Weighed
	rejected := slices.Clone(r.rejected)
	var best claimOrder
	for _, o := range r.orders {
		w := Weighed{Pool: o.pool.Name, Capacity: o.capacity, Named: o.namedBy, Without: o.fit.out, Inherited: o.fit.inherited}
		if o.takesNone() {
			w.Against = "takes none of the pods"
		} else {
			full, err := b.full(ctx, o)
			if err != nil {
				return nil, err
			}
			w.Against = full
		}
		if !w.taken() {
			rejected = append(rejected, w)
			continue
		}
		if len(pools) > 0 {
			_, pools[len(pools)-1].Better = o.lost.compare(best, o)
		}
		pools, best = append(pools, w), o
	}
	return append(pools, rejected...), nil
}
