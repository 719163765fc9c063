package karpenter

import (
	"context"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/room"
)

// elsewhereShare is the part of the interrupted node for which DaemonSets count at most that have no
// pod there.
const elsewhereShare = 2

// capacity is how much pods can have of the interrupted node, according to its NodeClaim; empty if that is
// not known. The Node that we are given is lean and does not say, and its kubelet could say anything.
func (lost replacedNode) capacity() corev1.ResourceList {
	if lost.claim == nil {
		return nil
	}
	if len(lost.claim.Status.Allocatable) > 0 {
		return lost.claim.Status.Allocatable
	}
	return lost.claim.Status.Capacity
}

// ask is what the replacement has to hold. Pods that were on the interrupted node had room there, so
// they count for no more than it had: with spec.nodeName a tenant, or the node's own kubelet, has any
// number of pods on it. DaemonSets that have no pod there come on top, up to a share of the node.
func (lost replacedNode) ask(s *shape, need provisioner.Need) corev1.ResourceList {
	ask, most := sumRequests(need), lost.capacity()
	if len(most) > 0 {
		ask = atMost(ask, most)
	}
	var more provisioner.Need
	for _, pod := range lost.elsewhere {
		if _, reason := s.needsOf(pod); reason == "" {
			more.Daemons = append(more.Daemons, pod)
		}
	}
	if len(more.Daemons) == 0 {
		return ask
	}
	extra := sumRequests(more)
	if len(most) > 0 {
		share := corev1.ResourceList{}
		for name, q := range most {
			share[name] = *resource.NewMilliQuantity(q.MilliValue()/elsewhereShare, q.Format)
		}
		extra = atMost(extra, share)
	}
	room.Add(ask, extra)
	return ask
}

// atMost is a, with no more than most of each resource, and without those that most lacks.
func atMost(a, most corev1.ResourceList) corev1.ResourceList {
	least := corev1.ResourceList{}
	for name, q := range a {
		limit, has := most[name]
		switch {
		case !has:
		case q.Cmp(limit) > 0:
			least[name] = limit.DeepCopy()
		default:
			least[name] = q
		}
	}
	return least
}

// sized sets what the order might use of its pool's limits. Karpenter chooses the instance type: of those
// that it had found for the interrupted node the cheapest that fits, which is about as large as that. If
// the pods that move need less than half of it, they need no such node: any type that the pool has is
// allowed then, of the same architecture and operating system, and one that fits has less than
// twice what they ask for.
func (o *claimOrder) sized() {
	o.size = o.ask
	if o.lost.claim == nil {
		return
	}
	was := atLeast(o.lost.claim.Status.Capacity, o.lost.claim.Status.Allocatable)
	twice := corev1.ResourceList{}
	room.Add(twice, o.ask)
	room.Add(twice, o.ask)
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		need, had := twice[name], was[name]
		if need.Cmp(had) > 0 {
			o.size = atLeast(o.ask, was)
			return
		}
	}
	if len(was) > 0 {
		o.anyType()
		o.size = atLeast(o.ask, atMost(twice, was))
	}
}

// anyType has the order leave the choice of the instance type to its pool.
func (o *claimOrder) anyType() {
	o.free = true
	s := &shape{given: o.pool.Spec.Template.Spec.Requirements, needed: o.fit.needed}
	for _, key := range []string{corev1.LabelArchStable, corev1.LabelOSStable} {
		if value := o.lost.node.Labels[key]; value != "" {
			s.need(requirement{Key: key, Operator: "In", Values: []string{value}})
		}
	}
	o.fit.needed = s.needed
}

// sizeLabels are the labels by which the providers tell how large an instance type is, and in how many
// bytes the memory is counted.
var sizeLabels = map[string]map[corev1.ResourceName]string{
	"karpenter.k8s.aws": {
		corev1.ResourceCPU:    "karpenter.k8s.aws/instance-cpu",
		corev1.ResourceMemory: "karpenter.k8s.aws/instance-memory",
	},
}

// within narrows the order to instance types that are within what is left of the pool's limits, as
// Karpenter does with its own claims; false if what is asked for exceeds that, or the types cannot be
// narrowed by what is limited.
func (o claimOrder) within(left corev1.ResourceList) (claimOrder, bool) {
	labels := sizeLabels[o.pool.Spec.Template.Spec.NodeClassRef.Group]
	o.anyType()
	size := maps.Clone(o.size)
	for name, q := range left {
		asked, of := o.ask[name], o.size[name]
		if asked.Cmp(q) > 0 {
			return o, false
		}
		if of.Cmp(q) <= 0 {
			continue
		}
		most := q.Value()
		if name == corev1.ResourceMemory {
			most >>= 20 // the label has MiB
		}
		label := labels[name]
		s := &shape{given: o.pool.Spec.Template.Spec.Requirements, needed: o.fit.needed}
		if label == "" || s.need(requirement{Key: label, Operator: "Lt", Values: []string{strconv.FormatInt(most+1, 10)}}) != "" {
			return o, false
		}
		o.fit.needed, size[name] = s.needed, q
	}
	o.size = size
	return o, true
}

// fitted is the order as it fits the limits of its pool. If none does, it is as it was.
func (b *Backend) fitted(ctx context.Context, o claimOrder) (claimOrder, error) {
	left, err := b.ledger.left(ctx, o.pool, o.name())
	if err != nil || left == nil {
		return o, err
	}
	if narrow, ok := o.within(left); ok && exceeds(o.size, left) {
		return narrow, nil
	}
	return o, nil
}

// full says which of the limits of the order's pool leaves no room for it, or is empty.
func (b *Backend) full(ctx context.Context, o claimOrder) (full string, err error) {
	o, err = b.fitted(ctx, o)
	if err != nil {
		return "", err
	}
	full, err = b.ledger.refusal(ctx, o.pool, o.name(), o.size)
	b.countRefusal(o, full)
	return full, err
}

// countRefusal counts that the limits of a fallback pool leave no room. A pool that is asked for a spot
// instance is none: the node moves to a fallback pool instead or, on the way back, stays on demand.
func (b *Backend) countRefusal(o claimOrder, full string) {
	if full != "" && o.capacity == "" {
		b.limitRefusals.Inc()
	}
}

// exceeds reports whether a has more of something than there is left.
func exceeds(a, left corev1.ResourceList) bool {
	for name, q := range left {
		if asked, has := a[name]; has && asked.Cmp(q) > 0 {
			return true
		}
	}
	return false
}

// hasElsewhere reports whether DaemonSets count that have no pod on the node.
func (r ranking) hasElsewhere() bool {
	return len(r.orders) > 0 && len(r.orders[0].lost.elsewhere) > 0
}

// withoutElsewhere is the ranking with replacements for the node's own pods and DaemonSets alone.
func (r ranking) withoutElsewhere() ranking {
	orders := make([]claimOrder, len(r.orders))
	for i, o := range r.orders {
		o.lost.elsewhere = nil
		orders[i] = o.lost.orderIn(o.candidate)
	}
	r.orders = orders
	return r
}
