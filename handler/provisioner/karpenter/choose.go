package karpenter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	pool   string     // the node's
	source *nodePool  // the node's; nil if it is gone
	claim  *nodeClaim // the node's; nil if it is gone
	tried  []string   // pools that were tried
	remark string     // for people

	lately []offerings.Loss
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
	orders, r, err := b.orders(ctx, lostNode{node: node, rec: rec, need: need, pool: node.Labels[nodePoolLabel], tried: tried, lately: b.offerings.Lost()})
	if reason, ok := unavailable(err); ok {
		return nil, unsupported(reason), nil
	}
	return orders, r, err
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

// orders makes an order for each pool that can give a replacement, best first.
func (b *Backend) orders(ctx context.Context, lost lostNode) ([]claimOrder, interruption.Replacement, error) {
	var err error
	if lost.source, err = b.pools.get(ctx, lost.pool); err != nil {
		return nil, interruption.Replacement{}, err
	}
	list, err := b.spotCandidates(ctx, lost)
	if err != nil {
		return nil, interruption.Replacement{}, err
	}
	fallbacks, refused, err := b.fallbackCandidates(ctx, lost)
	if list = append(list, fallbacks...); err != nil || len(list) == 0 {
		return nil, refused, err
	}
	// The one call that other nodes cannot share comes last.
	if lost.claim, err = b.sourceClaim(ctx, lost.node); err != nil {
		return nil, interruption.Replacement{}, err
	}
	if by := byKarpenter(lost); by != "" {
		stranded, err := b.stranded(ctx, lost.need.Moving)
		if err != nil {
			return nil, interruption.Replacement{}, err
		}
		if len(stranded) == 0 {
			return nil, unsupported(by), nil
		}
		lost.remark = fmt.Sprintf("only for the %d of %d pods that Karpenter leaves behind; %s", len(stranded), len(lost.need.Moving), by)
		lost.need.Moving = stranded
	}
	if lost.need.Daemons, err = b.withDaemons(ctx, lost.need.Daemons); err != nil {
		return nil, interruption.Replacement{}, err
	}
	var orders []claimOrder
	var against []string
	full := ""
	for _, o := range lost.rank(list) {
		if len(o.fit.need.Moving) == 0 {
			against = append(against, "NodePool "+o.pool.Name+" takes none of the pods: "+o.fit.remark())
			continue
		}
		if len(orders) == 0 { // the others are checked when it is their turn
			reason, err := b.ledger.room(ctx, o.pool, o.name(), o.size)
			if err != nil {
				return nil, interruption.Replacement{}, err
			}
			if reason != "" {
				against, full = append(against, reason), o.pool.Name
				continue
			}
		}
		orders = append(orders, o)
	}
	switch {
	case len(orders) > 0:
		return orders, orders[0].replacement(), nil
	case refused.State != "":
		return nil, refused, nil
	case full != "": // there might be room later
		return nil, failedIn(full, joinReasons(against)), nil
	case list[0].namedBy != "":
		return nil, failedIn(list[0].pool.Name, joinReasons(against)), nil
	}
	return nil, unsupported(joinReasons(against)), nil
}

// replacement is what the order will be once it is made.
func (o claimOrder) replacement() interruption.Replacement {
	return interruption.Replacement{
		Backend: provisioner.Karpenter, Name: o.name(), Pool: o.pool.Name, Capacity: o.capacity(), State: provisioner.StateRequested,
		Reason: o.remark, Tried: strings.Join(o.tried, ","),
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
	case slices.ContainsFunc(lost.node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == disruptedTaint }):
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
func (b *Backend) sourceClaim(ctx context.Context, node *corev1.Node) (*nodeClaim, error) {
	name, uid, ok := ownerClaim(node)
	if !ok {
		return nil, nil
	}
	// "0" is answered from the API server's watch cache.
	u, err := b.client.Resource(nodeClaimResource).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, b.pools.noteUnavailable("get NodeClaims", fmt.Errorf("get NodeClaim %q: %w", name, err))
	}
	claim, err := decodeClaim(u)
	if err != nil || claim.UID != uid {
		return nil, nil // what it says helps, but is not needed
	}
	return claim, nil
}

// madeByKarpenter reports whether a NodeClaim owns the node. The label says so until the
// node is registered, which is when Karpenter makes the claim its owner.
func madeByKarpenter(node *corev1.Node) bool {
	_, _, owned := ownerClaim(node)
	return owned || node.Labels[nodePoolLabel] != ""
}

// ownerClaim names the NodeClaim that owns the node.
func ownerClaim(node *corev1.Node) (name string, uid types.UID, ok bool) {
	for _, ref := range node.OwnerReferences {
		if ref.Kind == "NodeClaim" && strings.HasPrefix(ref.APIVersion, karpenterGroup+"/") {
			return ref.Name, ref.UID, true
		}
	}
	return "", "", false
}

// isUnregistered reports whether Karpenter has yet to take on the Node that a new machine has
// made: until then it has no owner.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/nodeclaim/lifecycle/registration.go
func isUnregistered(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == unregisteredTaint })
}
