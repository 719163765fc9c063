package karpenter

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

// Reasons of Unsupported.
const (
	reasonNotMade    = "the node was not made by Karpenter"
	reasonNoPool     = "the node has no label " + nodePoolLabel
	reasonNoMoving   = "no pod needs a new home"
	reasonNoInstance = "the record names no instance"
	reasonReplacing  = "Karpenter is replacing the node itself: its NodeClaim is being deleted"
	reasonDisrupting = "Karpenter is about to replace the node itself: it has tainted it"
)

// ownGrace is how long a NodeClaim has to be deleting before we leave its replacement to
// Karpenter: what was deleted at this moment has moved nothing yet.
const ownGrace = time.Second

// lostNode is what is known about an interrupted node when its replacement is chosen.
type lostNode struct {
	node   *corev1.Node
	rec    interruption.Record
	need   provisioner.Need
	pool   string    // the node's
	source *nodePool // the node's; nil if it is gone
	claim  *Claim    // the node's; nil if it is gone
	tried  []string  // pools that were tried
	remark string    // for people

	named, namedBy string // the pool that the operator has named to replace the node's, and where
	lately         []offerings.Loss
	tooMany        map[string]offerings.Losses // pools to which a node at risk had better not go
	spotFirst      bool                        // another spot instance is preferred
	holds          bool                        // what replaces it on demand is held until its pool is calm
}

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

	order claimOrder
}

// Misfit is why pods cannot run in a pool.
type Misfit struct {
	Reason string
	Pods   []string // namespace/name
}

// choose decides what to ask for: orders, best first, or none and a replacement that says
// why. What was tried before is not tried again.
func (b *Backend) choose(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need, tried []string) ([]claimOrder, interruption.Replacement, error) {
	if reason := cannot(node, rec); reason != "" {
		return nil, unsupported(reason), nil
	}
	if prev := rec.Replacement; prev != nil && prev.Reason == reasonReplacing {
		return nil, *prev, nil // a deletion is never undone
	}
	if len(need.Moving) == 0 {
		if prev := rec.Replacement; prev != nil && prev.Backend == provisioner.Karpenter {
			return nil, *prev, nil // the pods have left without one
		}
		return nil, unsupported(reasonNoMoving), nil
	}
	lost := b.lose(node, rec, need)
	lost.tried = tried
	pools, none, err := b.evaluate(ctx, lost, false)
	if reason, ok := unavailable(err); ok {
		return nil, unsupported(reason), nil
	}
	var orders []claimOrder
	for _, w := range pools {
		if w.Against == "" {
			orders = append(orders, w.order)
		}
	}
	if len(orders) > 0 {
		return orders, orders[0].replacement(), err
	}
	return nil, none, err
}

// Weigh says in which pools Request would ask for a replacement, in that order, and after them
// why it would not ask in the others. It asks for nothing, and is for people: what Request
// answers says the same of one pool.
func (b *Backend) Weigh(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) ([]Weighed, error) {
	if cannot(node, rec) != "" || len(need.Moving) == 0 {
		return nil, nil
	}
	pools, _, err := b.evaluate(ctx, b.lose(node, rec, need), true)
	return pools, err
}

func (b *Backend) lose(node *corev1.Node, rec interruption.Record, need provisioner.Need) lostNode {
	lost := lostNode{
		node: node, rec: rec, need: need, pool: node.Labels[nodePoolLabel], lately: b.opts.Offerings.Lost(),
	}
	if rec.Kind == interruption.RebalanceRecommendation {
		policy, _ := b.RebalancePolicy(node) // if the pools cannot be read, none is chosen
		lost.spotFirst = cmp.Or(policy, b.opts.Rebalance) != interruption.RebalanceFallback
	}
	if lost.spotFirst {
		lost.tooMany = b.opts.Offerings.TooMany()
		if l, ok := lost.tooMany[lost.pool]; ok {
			lost.remark = "pool " + lost.pool + " has " + l.String()
		}
	}
	return lost
}

// cannot says why nothing can be done for the node.
func cannot(node *corev1.Node, rec interruption.Record) string {
	switch {
	case !madeByKarpenter(node):
		return reasonNotMade
	case rec.Instance == "":
		return reasonNoInstance
	case node.Labels[nodePoolLabel] == "":
		return reasonNoPool
	}
	return ""
}

// evaluate says of each pool whether it can give a replacement: first those that can, best first. If
// none can, the answer says why. Unless all is true, only the limits of the best are checked: the
// others are when it is their turn.
func (b *Backend) evaluate(ctx context.Context, lost lostNode, all bool) (pools []Weighed, none interruption.Replacement, err error) {
	known, err := b.pools.Get(ctx, "")
	if err != nil {
		return nil, none, err
	}
	lost.source = poolNamed(known, lost.pool)
	lost.holds = b.holds(lost)
	lost.named, lost.namedBy = fallbackFor(lost, b.opts.FallbackNodePools)
	fallbacks, rejected := lost.fallbacks(known)
	list := append(lost.spotCandidates(known), fallbacks...)
	for i, c := range list {
		_, inVain := b.inVain.Last(triedAs(c.pool.Name, c.capacity))
		list[i].inVain = inVain && lost.spotFirst
	}
	if len(fallbacks) == 0 {
		none = lost.refusal(rejected)
	}
	if len(list) == 0 {
		return rejected, none, nil
	}
	// The one call that other nodes cannot share comes last.
	if lost.claim, err = b.sourceClaim(ctx, lost.node); err != nil {
		return nil, none, err
	}
	if by := byKarpenter(lost); by != "" {
		stranded, err := b.stranded(ctx, lost.need.Moving)
		if err != nil || len(stranded) == 0 {
			return nil, unsupported(by), err
		}
		lost.remark = fmt.Sprintf("only for the %d of %d pods that Karpenter leaves behind; %s", len(stranded), len(lost.need.Moving), by)
		lost.need.Moving = stranded
	}
	if lost.need.Daemons, err = b.withDaemons(ctx, lost.need.Daemons); err != nil {
		return nil, none, err
	}
	var against []string
	full := ""
	for _, o := range lost.rank(list) {
		w := Weighed{Pool: o.pool.Name, Capacity: o.capacity, Named: o.namedBy, Without: o.fit.out, Inherited: o.fit.inherited, order: o}
		switch {
		case len(o.fit.need.Moving) == 0:
			w.Against = "takes none of the pods"
			against = append(against, "NodePool "+o.pool.Name+" takes none of the pods: "+o.fit.remark())
		case all || len(pools) == 0:
			if w.Against, err = b.ledger.room(ctx, o.pool, o.name(), o.size); err != nil {
				return nil, none, err
			}
			if w.Against != "" {
				against, full = append(against, w.Against), o.pool.Name
			}
		}
		if w.Against != "" {
			rejected = append(rejected, w)
			continue
		}
		if len(pools) > 0 {
			last := &pools[len(pools)-1]
			_, last.Better = lost.compare(last.order, o)
		}
		pools = append(pools, w)
	}
	switch {
	case none.State != "":
	case full != "": // there might be room later
		none = failedIn(full, joinReasons(against))
	case list[0].namedBy != "":
		none = failedIn(list[0].pool.Name, joinReasons(against))
	default:
		none = unsupported(joinReasons(against))
	}
	return append(pools, rejected...), none, nil
}

// replacement is what the order will be once it is made.
func (o claimOrder) replacement() interruption.Replacement {
	return interruption.Replacement{
		Backend: provisioner.Karpenter, Name: o.name(), Pool: o.pool.Name, Capacity: o.capacity, State: provisioner.StateRequested,
		Reason: o.remark, Tried: strings.Join(o.lost.tried, ","),
	}
}

// byKarpenter says that Karpenter is ending the node itself: because of a message in its own
// interruption queue, or because the node has drifted, expired or is to be consolidated. For
// the pods that it moves, it has made room or will.
func byKarpenter(lost lostNode) string {
	switch {
	case lost.claim != nil && !lost.claim.DeletionTimestamp.IsZero():
		if time.Since(lost.claim.DeletionTimestamp.Time) > ownGrace {
			return reasonReplacing
		}
	case hasTaint(lost.node, disruptedTaint):
		return reasonDisrupting
	}
	return ""
}

// joinReasons keeps the text short enough for the Node.
func joinReasons(reasons []string) string {
	const most = 5
	if more := len(reasons) - most; more > 0 {
		reasons = append(reasons[:most:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(reasons, "; ")
}

// sourceClaim is the NodeClaim of the interrupted node, or nil if there is none.
func (b *Backend) sourceClaim(ctx context.Context, node *corev1.Node) (*Claim, error) {
	name, uid, ok := OwnerClaim(node)
	if !ok {
		return nil, nil
	}
	claim, err := b.readClaim(ctx, name, cached)
	if err != nil {
		return nil, b.note(err)
	}
	if claim == nil || claim.UID != uid {
		return nil, nil
	}
	return claim, nil
}

// madeByKarpenter reports whether a NodeClaim owns the node. The label says so until the
// node is registered, which is when Karpenter makes the claim its owner.
func madeByKarpenter(node *corev1.Node) bool {
	_, _, owned := OwnerClaim(node)
	return owned || node.Labels[nodePoolLabel] != ""
}

// OwnerClaim names the NodeClaim that owns the node.
func OwnerClaim(node *corev1.Node) (name string, uid types.UID, ok bool) {
	for _, ref := range node.OwnerReferences {
		if ref.Kind == "NodeClaim" && strings.HasPrefix(ref.APIVersion, karpenterGroup+"/") {
			return ref.Name, ref.UID, true
		}
	}
	return "", "", false
}

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}
