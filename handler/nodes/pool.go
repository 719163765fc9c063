package nodes

import corev1 "k8s.io/api/core/v1"

// poolLabels are the labels that name the pool of a Node, by what made it: Karpenter, EKS,
// eksctl. The first one set counts.
var poolLabels = []string{"karpenter.sh/nodepool", "eks.amazonaws.com/nodegroup", "alpha.eksctl.io/nodegroup-name"}

// Pool identifies what made a node, and as what. Nodes that say nothing all form one pool, the
// zero value.
type Pool struct{ label, Name string }

// PoolOf is the pool of a Node.
func PoolOf(node *corev1.Node) Pool {
	for _, label := range poolLabels {
		if name := node.Labels[label]; name != "" {
			return Pool{label, name}
		}
	}
	return Pool{}
}

// Label is a label with its value.
type Label struct{ Key, Value string }

// OnDemandLabels say of a Node that EC2 does not take it back at two minutes' notice: Karpenter's,
// and that of EKS.
var OnDemandLabels = []Label{{"karpenter.sh/capacity-type", "on-demand"}, {"eks.amazonaws.com/capacityType", "ON_DEMAND"}}

// OnDemand is the first of OnDemandLabels that the Node has.
func OnDemand(node *corev1.Node) (Label, bool) {
	for _, l := range OnDemandLabels {
		if node.Labels[l.Key] == l.Value {
			return l, true
		}
	}
	return Label{}, false
}

// PoolSize is how many Nodes the pool has. It looks at every Node.
func (x *Index) PoolSize(of Pool) int {
	n := 0
	for _, obj := range x.store.List() {
		if node, ok := obj.(*corev1.Node); ok && PoolOf(node) == of {
			n++
		}
	}
	return n
}
