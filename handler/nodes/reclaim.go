package nodes

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Label is a label with its value.
type Label struct{ Key, Value string }

// SpotLabels say of a Node that its instance is spot: Karpenter's, that of EKS, and that of eksctl, as in
// the chart's values. Another value says that it is not. OnDemandLabels say that it is on demand.
var (
	SpotLabels     = []Label{{"karpenter.sh/capacity-type", "spot"}, {"eks.amazonaws.com/capacityType", "SPOT"}, {"node-lifecycle", "spot"}}
	OnDemandLabels = []Label{{"karpenter.sh/capacity-type", "on-demand"}, {"eks.amazonaws.com/capacityType", "ON_DEMAND"}}
)

// Spot reports whether the Node is labelled as spot, and by which label. Of several the first of
// SpotLabels counts.
func Spot(node *corev1.Node) (Label, bool) {
	for _, l := range SpotLabels {
		if value, has := node.Labels[l.Key]; has {
			return l, value == l.Value
		}
	}
	return Label{}, false
}

// OnDemand is the first of OnDemandLabels that the Node has.
func OnDemand(node *corev1.Node) (Label, bool) {
	for _, l := range OnDemandLabels {
		if node.Labels[l.Key] == l.Value {
			return l, true
		}
	}
	return Label{}, false
}

// Reclaim is whether EC2 can take the instance of a Node back at two minutes' notice, as far as the
// Node says.
type Reclaim int

const (
	// ReclaimUnsaid: it is an EC2 instance, and has none of the labels that say what kind of capacity
	// it is.
	ReclaimUnsaid Reclaim = iota
	// Reclaimable: it is a spot instance.
	Reclaimable
	// NotReclaimable: it is on demand or reserved, it belongs to the control plane, or it is no EC2
	// instance, such as a Fargate pod, a hybrid node or a virtual kubelet.
	NotReclaimable
)

// controlPlane are the labels of the nodes of a control plane, whatever their value.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#node-role-kubernetes-io-control-plane
var controlPlane = []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}

// ReclaimOf is whether EC2 can take back the Node's instance.
func ReclaimOf(node *corev1.Node) Reclaim {
	manages := slices.ContainsFunc(controlPlane, func(key string) bool { _, has := node.Labels[key]; return has })
	label, spot := Spot(node)
	switch {
	case manages, !IsInstanceID(InstanceID(node)):
		return NotReclaimable
	case spot:
		return Reclaimable
	case label.Key != "":
		return NotReclaimable
	}
	return ReclaimUnsaid
}

// AtRisk returns which of the Nodes EC2 can take back: those that are Reclaimable. If there are none,
// nobody seems to label spot instances, and it is those that don't say what they are.
func AtRisk(all []*corev1.Node) func(*corev1.Node) bool {
	want := ReclaimUnsaid
	if slices.ContainsFunc(all, func(n *corev1.Node) bool { return ReclaimOf(n) == Reclaimable }) {
		want = Reclaimable
	}
	return func(node *corev1.Node) bool { return ReclaimOf(node) == want }
}
