package karpenter

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// Reasons of provisioner.StateUnsupported.
const (
	reasonNotMade    = "the node was not made by Karpenter"
	reasonNoPool     = "the node has no label " + nodePoolLabel
	reasonNoMoving   = "no pod needs a new home"
	reasonNoInstance = "the record names no instance"
	reasonReplacing  = "Karpenter is already replacing the node: its NodeClaim is being deleted"
)

// ownGrace is how long a NodeClaim has to be deleting before we leave its
// replacement to Karpenter: what was deleted in this moment has moved nothing yet.
const ownGrace = time.Second

// candidate is a NodePool that may give the replacement.
type candidate struct {
	pool    string
	namedBy string
}

// candidates lists the pools to try, best first. Today there is at most one: what
// the operator has named. A name that turns out to be wrong is not made up for by a
// guess. The source may be nil. The operator may name the same pool again, as for a
// pool of spot and on-demand instances.
func candidates(name string, source *nodePool, fallbacks map[string]string) []candidate {
	if source != nil && source.Annotations[FallbackAnnotation] != "" {
		return []candidate{{pool: source.Annotations[FallbackAnnotation], namedBy: "annotation " + FallbackAnnotation + " of NodePool " + name}}
	}
	if to := fallbacks[name]; to != "" {
		return []candidate{{pool: to, namedBy: "--fallback-nodepool"}}
	}
	return nil
}

// rules say in their order why a pool cannot give a replacement. The first
// objection counts; a pool without one is taken.
var rules = []func(pool *nodePool) string{
	isBroken,
	isDeleting,
	isStatic,
	hasNoNodeClass,
	isNotReady,
}

func isBroken(pool *nodePool) string {
	if pool.broken == "" {
		return ""
	}
	return "cannot be read: " + pool.broken
}

func isDeleting(pool *nodePool) string {
	if pool.DeletionTimestamp.IsZero() {
		return ""
	}
	return "is being deleted"
}

// isStatic: Karpenter keeps the number of such a pool's nodes, and takes ours away.
func isStatic(pool *nodePool) string {
	if pool.Spec.Replicas == nil {
		return ""
	}
	return "is static (spec.replicas)"
}

func hasNoNodeClass(pool *nodePool) string {
	ref := pool.Spec.Template.Spec.NodeClassRef
	if ref.Group != "" && ref.Kind != "" && ref.Name != "" {
		return ""
	}
	return "has no complete nodeClassRef"
}

func isNotReady(pool *nodePool) string {
	ready := find(pool.Status.Conditions, "Ready")
	switch {
	case ready.isTrue():
		return ""
	case ready == nil || ready.Message == "":
		return "is not Ready"
	default:
		return "is not Ready: " + ready.Message
	}
}

// objection is the first that the rules have to the pool, or nothing.
func objection(pool *nodePool) string {
	for _, rule := range rules {
		if reason := rule(pool); reason != "" {
			return reason
		}
	}
	return ""
}

// choose decides what to ask for: an order and the replacement that it will be, or
// no order and the replacement that says why.
func (b *Backend) choose(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (*claimOrder, interruption.Replacement, error) {
	if reason := b.cannot(node, rec); reason != "" {
		return nil, unsupported(reason), nil
	}
	if prev := rec.Replacement; prev != nil && prev.Reason == reasonReplacing {
		return nil, *prev, nil // a deletion is never undone
	}
	if len(need.Moving) == 0 {
		return nil, unsupported(reasonNoMoving), nil
	}
	o, r, err := b.chooseClaim(ctx, node, rec, need)
	if reason, ok := unavailable(err); ok {
		return nil, unsupported(reason), nil
	}
	return o, r, err
}

// cannot says why nothing can be done for the node.
func (b *Backend) cannot(node *corev1.Node, rec interruption.Record) string {
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

// chooseClaim chooses the pool for a node of Karpenter's.
func (b *Backend) chooseClaim(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (*claimOrder, interruption.Replacement, error) {
	source := node.Labels[nodePoolLabel]
	sourcePool, err := b.pools.get(ctx, source)
	if err != nil {
		return nil, interruption.Replacement{}, err
	}
	list := candidates(source, sourcePool, b.fallbacks)
	if len(list) == 0 {
		return nil, unsupported("no fallback NodePool named for pool " + source), nil
	}
	ask := requests(need)
	pool, failed, err := b.firstFit(ctx, list, ask)
	if err != nil || pool == nil {
		return nil, failed, err
	}
	// The one call that is this node's own stands last.
	claim, err := b.sourceClaim(ctx, node)
	if err != nil {
		return nil, interruption.Replacement{}, err
	}
	if claim != nil && !claim.DeletionTimestamp.IsZero() && time.Since(claim.DeletionTimestamp.Time) > ownGrace {
		return nil, unsupported(reasonReplacing), nil
	}
	o := &claimOrder{instance: rec.Instance, node: node, pool: pool, source: claim, need: need, ask: ask}
	return o, interruption.Replacement{Backend: provisioner.Karpenter, Name: o.name(), Pool: pool.Name, State: provisioner.StateRequested}, nil
}

// firstFit is the first candidate without an objection, or else the failure that
// names what speaks against each of them.
func (b *Backend) firstFit(ctx context.Context, list []candidate, ask corev1.ResourceList) (*nodePool, interruption.Replacement, error) {
	var against []string
	for _, c := range list {
		pool, err := b.pools.get(ctx, c.pool)
		if err != nil {
			return nil, interruption.Replacement{}, err
		}
		reason := "does not exist"
		if pool != nil {
			reason = objection(pool)
		}
		if reason != "" {
			against = append(against, fmt.Sprintf("NodePool %s, named by %s, %s", c.pool, c.namedBy, reason))
			continue
		}
		if reason := b.ledger.room(pool, ask); reason != "" {
			against = append(against, reason)
			continue
		}
		return pool, interruption.Replacement{}, nil
	}
	return nil, interruption.Replacement{
		Backend: provisioner.Karpenter,
		Pool:    list[0].pool,
		State:   provisioner.StateFailed,
		Reason:  strings.Join(against, "; "),
	}, nil
}

// sourceClaim is the NodeClaim of the interrupted node, or nil where there is none.
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
		return nil, b.pools.judge("get NodeClaims", fmt.Errorf("get NodeClaim %q: %w", name, err))
	}
	claim, err := decodeClaim(u)
	if err != nil || claim.UID != uid {
		return nil, nil // what it says is a help, and nothing rests on it
	}
	return claim, nil
}

// madeByKarpenter reports whether a NodeClaim owns the node. The label stands for
// it until the node is registered, which is when Karpenter makes it an owner.
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
