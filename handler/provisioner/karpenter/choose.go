package karpenter

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

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
	reasonNoStandIn  = "the node stands in for no spot node"
	reasonReplacing  = "Karpenter is replacing the node itself: its NodeClaim is being deleted"
	reasonDisrupting = "Karpenter is about to replace the node itself: it has tainted it"
)

// replacedNode is what is known about an interrupted node when its replacement is chosen.
type replacedNode struct {
	node   *corev1.Node
	rec    interruption.Record
	need   provisioner.Need
	pool   string    // the node's
	source *nodePool // the node's; nil if it is gone
	claim  *Claim    // the node's; nil if it is gone
	tried  []string  // pools that were tried
	remark string    // for people

	elsewhere []*corev1.Pod // of DaemonSets that have none on this node

	named, namedBy string // the pool that the operator has named to replace the node's, and where
	lately         []offerings.Loss
	tooMany        map[string]offerings.Losses // pools to which a node at risk had better not go
	spotFirst      bool                        // another spot instance is preferred
	holds          bool                        // what replaces it on demand is held until its pool is calm
	returns        bool                        // whatever its pool's consolidation would do

	// Of a node that goes back to spot: the pool that it stands in for, which alone is asked, what that has
	// had, and what was lost within calm.
	backTo string
	had    []offerings.Offering
	last   map[offerings.Offering]time.Time
	calm   time.Duration
}

// choice is what to ask for.
type choice struct {
	orders []claimOrder             // best first
	none   interruption.Replacement // why there are none
}

// choose decides what to ask for. What was tried before is not tried again. Only the limits of the best
// order's pool are checked: those of the others are when it is their turn.
func (b *Backend) choose(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need, tried []string) (choice, error) {
	if none := refuse(node, rec, need); none != nil {
		return choice{none: *none}, nil
	}
	c, err := b.among(ctx, node, rec, need, tried)
	if reason, ok := unavailable(err); ok {
		return choice{none: unsupported(reason)}, nil
	}
	return c, err
}

// among chooses among the pools. What other nodes' DaemonSets might ask for is left out if no pool has
// room for it.
func (b *Backend) among(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need, tried []string) (choice, error) {
	lost, err := b.lose(ctx, node, rec, need)
	if err != nil {
		return choice{}, err
	}
	lost.tried = tried
	r, err := b.rank(ctx, lost)
	if err != nil {
		return choice{}, err
	}
	c, err := b.best(ctx, r)
	if err == nil && len(c.orders) == 0 && r.hasElsewhere() {
		return b.best(ctx, r.withoutElsewhere())
	}
	return c, err
}

// refuse is the answer that follows from the node, its record and its pods alone; nil if none does.
func refuse(node *corev1.Node, rec interruption.Record, need provisioner.Need) *interruption.Replacement {
	prev := rec.Replacement
	var none interruption.Replacement
	switch reason := cannot(node, rec); {
	case reason != "":
		none = unsupported(reason)
	case prev != nil && prev.Reason == reasonReplacing:
		none = *prev // a deletion is never undone
	case len(need.Moving) > 0:
		return nil
	case prev != nil && prev.Backend == provisioner.Karpenter:
		none = *prev // the pods have left without one
	default:
		none = unsupported(reasonNoMoving)
	}
	return &none
}

// lose collects what is known of the node. Its NodeClaim overrides the node's own labels, which its
// kubelet can write.
func (b *Backend) lose(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (replacedNode, error) {
	claim, err := b.sourceClaim(ctx, node)
	if err != nil {
		return replacedNode{}, err
	}
	node = asMade(node, claim)
	lost := replacedNode{
		node: node, rec: rec, need: need, claim: claim, pool: node.Labels[nodePoolLabel], lately: b.opts.Offerings.Lost(),
	}
	switch {
	case rec.Returns():
		if claim != nil {
			lost.backTo = claim.Annotations[StandsInAnnotation]
		}
	case rec.Kind == interruption.RebalanceRecommendation:
		policy, _ := b.RebalancePolicy(node) // if the pools cannot be read, none is chosen
		lost.spotFirst = cmp.Or(policy, b.opts.Rebalance) != interruption.RebalanceFallback
	}
	if lost.spotFirst {
		lost.tooMany = b.opts.Offerings.TooMany()
		if l, ok := lost.tooMany[lost.pool]; ok {
			lost.remark = "pool " + lost.pool + " has " + l.String()
		}
	}
	return lost, nil
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

// ranking are the pools that may replace a node, before their limits are checked.
type ranking struct {
	orders   []claimOrder // best first
	rejected []Weighed    // the other pools
	// none is the answer if nothing comes of the orders. If it has no state, that follows from why they
	// fail; named is the pool that the operator has named, if it is the only one that is asked.
	none  interruption.Replacement
	named string
}

// rank makes an order in each pool that may replace the node.
func (b *Backend) rank(ctx context.Context, lost replacedNode) (ranking, error) {
	known, err := b.pools.Get(ctx, "")
	if err != nil {
		return ranking{}, err
	}
	lost.source = poolNamed(known, lost.pool)
	if lost.rec.Returns() {
		return b.rankReturn(ctx, lost, known)
	}
	lost.holds, lost.returns = b.holds(lost), b.opts.Return != nil
	lost.named, lost.namedBy = fallbackFor(lost, b.opts.FallbackNodePools)
	fallbacks, rejected := lost.fallbacks(known)
	list := append(lost.spotCandidates(known), fallbacks...)
	for i, c := range list {
		_, inVain := b.inVain.Last(triedAs(c.pool.Name, c.capacity))
		list[i].inVain = inVain && lost.spotFirst
	}
	r := ranking{rejected: rejected}
	if len(fallbacks) == 0 {
		r.none = lost.refusal(rejected)
	}
	if len(list) == 0 {
		return r, nil
	}
	if list[0].namedBy != "" {
		r.named = list[0].pool.Name
	}
	by, err := b.complete(ctx, &lost)
	if err != nil {
		return ranking{}, err
	}
	if by != "" {
		return ranking{none: unsupported(by)}, nil
	}
	r.orders = lost.rank(list)
	return r, nil
}

// rankReturn makes the only order of a node that goes back to spot: in the pool that it stands in for.
func (b *Backend) rankReturn(ctx context.Context, lost replacedNode, known []*nodePool) (ranking, error) {
	if lost.backTo == "" {
		return ranking{none: unsupported(reasonNoStandIn)}, nil
	}
	pool := poolNamed(known, lost.backTo)
	if pool == nil {
		return ranking{none: failedIn(lost.backTo, "NodePool "+lost.backTo+" is gone")}, nil
	}
	if against := objection(slices.Concat(rules, []func(*nodePool, replacedNode) string{spotWasTried, hasOtherNodeClass}), pool, lost); against != "" {
		return ranking{none: failedIn(pool.Name, "NodePool "+pool.Name+" "+against)}, nil
	}
	if by := replacedBy(lost); by != "" { // for what it leaves behind, too: those pods stay on demand with it
		return ranking{none: unsupported(by)}, nil
	}
	if _, err := b.complete(ctx, &lost); err != nil {
		return ranking{}, err
	}
	lost.calm = b.calmOf(pool)
	lost.had = b.opts.Offerings.Had(pool.Name)
	lost.last, _ = b.opts.Offerings.LastLosses(time.Now().Add(-lost.calm))
	return ranking{orders: lost.rank([]candidate{{pool: pool, capacity: spot}}), named: pool.Name}, nil
}

// complete adds the DaemonSets and, if Karpenter replaces the node itself, has only the pods move that
// it leaves behind. If it leaves none, by says why nothing is to be asked for.
func (b *Backend) complete(ctx context.Context, lost *replacedNode) (by string, err error) {
	if by := replacedBy(*lost); by != "" {
		stranded, err := b.stranded(ctx, lost.need.Moving)
		if err != nil || len(stranded) == 0 {
			return by, err
		}
		lost.remark = fmt.Sprintf("only for the %d of %d pods that Karpenter leaves behind; %s", len(stranded), len(lost.need.Moving), by)
		lost.need.Moving = stranded
	}
	lost.elsewhere, err = b.elsewhere(ctx, lost.need.Daemons)
	return "", err
}

// best drops the orders of which nothing can come, up to the first that has room.
func (b *Backend) best(ctx context.Context, r ranking) (choice, error) {
	var against []string
	full := ""
	for i, o := range r.orders {
		if o.takesNone() {
			against = append(against, "NodePool "+o.pool.Name+" "+cmp.Or(o.against, "takes none of the pods: "+o.fit.remark()))
			continue
		}
		reason, err := b.full(ctx, o)
		if err != nil {
			return choice{}, err
		}
		if reason == "" {
			return choice{orders: slices.DeleteFunc(r.orders[i:], claimOrder.takesNone)}, nil
		}
		against, full = append(against, reason), o.pool.Name
	}
	switch {
	case r.none.State != "":
		return choice{none: r.none}, nil
	case full != "": // there might be room later
		return choice{none: failedIn(full, joinReasons(against))}, nil
	case r.named != "":
		return choice{none: failedIn(r.named, joinReasons(against))}, nil
	}
	return choice{none: unsupported(joinReasons(against))}, nil
}

// takesNone reports whether nothing comes of the order: none of the pods can run in the pool, for example.
func (o claimOrder) takesNone() bool { return o.against != "" || len(o.fit.need.Moving) == 0 }

// replacement is what the order will be once it is made.
func (o claimOrder) replacement() interruption.Replacement {
	return interruption.Replacement{
		Backend: provisioner.Karpenter, Name: o.name(), Pool: o.pool.Name, Capacity: o.capacity, State: provisioner.StateRequested,
		Reason: o.remark, Tried: strings.Join(o.lost.tried, ","),
	}
}

// joinReasons keeps the text short enough for the Node.
func joinReasons(reasons []string) string {
	const most = 5
	if more := len(reasons) - most; more > 0 {
		reasons = append(reasons[:most:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(reasons, "; ")
}
