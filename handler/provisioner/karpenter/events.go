package karpenter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons of our Events on NodeClaims, and on NodePools.
const (
	reasonReplaces    = "ReplacesInterruptedNode"
	reasonNotLaunched = "NotLaunched"
	reasonUnused      = "ReplacementUnused"
	reasonUnprotected = "ProtectionRemoved"
	reasonWrongPolicy = "RebalancePolicyUnknown"
)

// Events writes Kubernetes Events. It does not block or fail.
type Events interface {
	About(object *corev1.ObjectReference, warning bool, reason, text string)
}

// eventWriter writes nothing if it has no Events.
type eventWriter struct{ Events }

func (e eventWriter) claim(name string, uid types.UID, warning bool, reason, text string) {
	if e.Events == nil {
		return
	}
	e.About(&corev1.ObjectReference{APIVersion: karpenterGroup + "/v1", Kind: "NodeClaim", Name: name, UID: uid}, warning, reason, text)
}

// pool is a Warning about a NodePool.
func (e eventWriter) pool(p *nodePool, reason, text string) {
	if e.Events == nil {
		return
	}
	e.About(&corev1.ObjectReference{APIVersion: karpenterGroup + "/v1", Kind: "NodePool", Name: p.Name, UID: p.UID}, true, reason, text)
}
