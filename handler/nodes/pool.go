package nodes

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

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

// Selector selects the nodes of the pool, and no others.
func (p Pool) Selector() string {
	var terms []string
	for _, label := range poolLabels {
		if label == p.label {
			terms = append(terms, label+"="+p.Name)
			break
		}
		terms = append(terms, "!"+label)
	}
	return strings.Join(terms, ",")
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
