package karpenter

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ownGrace is how long a NodeClaim has to be deleting before we leave its replacement to
// Karpenter: what was deleted at this moment has moved nothing yet.
const ownGrace = time.Second

// replacedBy says that Karpenter is ending the node itself: because of a message in its own
// interruption queue, or because the node has drifted, expired or is to be consolidated. For
// the pods that it moves, it has made room or will.
func replacedBy(lost replacedNode) string {
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

// sourceTTL is how long the NodeClaim of an interrupted node is remembered: the loss is noted and the replacement
// requested from one read.
const sourceTTL = time.Second

func (b *Backend) readSource(ctx context.Context, name string) (*Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, poolTimeout)
	defer cancel()
	return b.readClaim(ctx, name, cached)
}

// sourceClaim is the NodeClaim of the interrupted node, or nil if there is none.
func (b *Backend) sourceClaim(ctx context.Context, node *corev1.Node) (*Claim, error) {
	owner := OwnerClaim(node)
	if owner == nil {
		return nil, nil
	}
	claim, err := b.sources.Get(ctx, owner.Name)
	if err != nil {
		return nil, b.note(err)
	}
	if claim == nil || claim.UID != owner.UID {
		return nil, nil
	}
	return claim, nil
}

// AsMade is the node with the labels of its NodeClaim, or as it is if it has none. There is an error if
// that can't be read.
func (b *Backend) AsMade(ctx context.Context, node *corev1.Node) (*corev1.Node, error) {
	claim, err := b.sourceClaim(ctx, node)
	if err != nil {
		return nil, err
	}
	return asMade(node, claim), nil
}

// asMade is the node with the labels that its NodeClaim has: its instance type, zone, capacity type and
// pool, for example. A kubelet can write most labels of its own Node, but no NodeClaim.
// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#noderestriction
func asMade(node *corev1.Node, claim *Claim) *corev1.Node {
	if claim == nil || len(claim.Labels) == 0 {
		return node
	}
	made := *node
	made.Labels = maps.Clone(node.Labels)
	if made.Labels == nil {
		made.Labels = map[string]string{}
	}
	maps.Copy(made.Labels, claim.Labels)
	return &made
}

// madeByKarpenter reports whether a NodeClaim owns the node. The label says so until the
// node is registered, which is when Karpenter makes the claim its owner.
func madeByKarpenter(node *corev1.Node) bool {
	return OwnerClaim(node) != nil || node.Labels[nodePoolLabel] != ""
}

// OwnerClaim is the NodeClaim that owns the node; nil if none does.
func OwnerClaim(node *corev1.Node) *metav1.OwnerReference {
	for i, ref := range node.OwnerReferences {
		if ref.Kind == "NodeClaim" && strings.HasPrefix(ref.APIVersion, karpenterGroup+"/") {
			return &node.OwnerReferences[i]
		}
	}
	return nil
}

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}
