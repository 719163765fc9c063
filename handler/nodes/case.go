package nodes

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"spot-handler/handler/interruption"
)

// RulesFunc returns the operator's rules for a node. It is called often and must nearly always
// answer from memory. Rebalance matters only if recommended is true; otherwise it may be empty.
// An error is transient: the rules then hold, except for Rebalance.
type RulesFunc func(node *corev1.Node, recommended bool) (interruption.Rules, error)

// Case is what a notice is judged by: the Node, the operator's rules for it, and now.
//
// If the rebalance policy cannot be read right now, the node is only recorded, like one that is
// to be replaced. The reconcile loop looks at it again.
func Case(node *corev1.Node, n interruption.Notice, rules RulesFunc, now time.Time) interruption.Case {
	rec, has, err := Record(node)
	instance := InstanceID(node)
	if !IsInstanceID(instance) && n.InstanceID != "" {
		instance = n.InstanceID // the Node does not know better
	}
	c := interruption.Case{
		Notice: n, Record: rec, Recorded: has && err == nil, Now: now,
		Past: interruption.ParsePast(node.Annotations[interruption.PastAnnotation]),
		Node: interruption.Node{
			Instance: instance, Boot: node.Status.NodeInfo.BootID,
			Deleting: node.DeletionTimestamp != nil,
			ScalingDown: slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
				return t.Key == scalesDown
			}),
		},
	}
	c.Node.ReadySince, c.Node.Ready = ReadySince(node)
	if c.Rules, err = rules(node, c.Recommended()); err != nil {
		c.Rules.Rebalance = interruption.RebalanceReplace
	}
	return c
}

// scalesDown is the taint of a Node that Cluster Autoscaler drains before it terminates the
// instance. It leaves the Node to the cloud controller.
// https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/utils/taints/taints.go
const scalesDown = "ToBeDeletedByClusterAutoscaler"

// Record reads a Node's record: whether there is one, and whether it can be acted on. One
// that cannot be read cannot, nor one about another instance than the Node's: whoever owns a
// node's kubelet may write its annotations, and a record has instances detached, terminated
// and their hooks completed.
func Record(node *corev1.Node) (rec interruption.Record, has bool, err error) {
	text, has := node.Annotations[interruption.Annotation]
	if !has {
		return interruption.Record{}, false, nil
	}
	if rec, err = interruption.ParseRecord(text); err != nil {
		return rec, true, err
	}
	if own := InstanceID(node); IsInstanceID(own) && rec.Instance != own {
		return interruption.Record{}, true, fmt.Errorf("read record: it is about instance %.64q, and the node is %s", rec.Instance, own)
	}
	return rec, true, nil
}

// Older reports whether resource version a is older than b, "" for none. Since Kubernetes 1.35 the
// API promises that they can be compared; if one cannot be, a counts as new.
// https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/5504-comparable-resource-version
func Older(a, b string) bool {
	c, err := resourceversion.CompareResourceVersion(a, b)
	return b != "" && err == nil && c < 0
}

// Ready reports whether the Node is Ready.
func Ready(node *corev1.Node) bool {
	_, ready := ReadySince(node)
	return ready
}
