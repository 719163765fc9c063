package nodes

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	rec, err := Record(node)
	instance := InstanceID(node)
	if !IsInstanceID(instance) && n.InstanceID != "" {
		instance = n.InstanceID // the Node does not know better
	}
	c := interruption.Case{
		Notice: n, Record: rec, Recorded: err == nil, Now: now,
		Cancelling: node.Annotations[interruption.CancelAnnotation] == "true",
		Past:       interruption.ParsePast(node.Annotations[interruption.PastAnnotation]),
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

// ErrNoRecord says that a Node has no record.
var ErrNoRecord = errors.New("the node has no record")

// HasRecord reports whether the Node has a record, even one that Record refuses.
func HasRecord(node *corev1.Node) bool {
	_, has := node.Annotations[interruption.Annotation]
	return has
}

// Record reads a Node's record. The error is ErrNoRecord if there is none. A record that can't be
// read is refused, and so is one about another instance than the Node's: whoever owns a node's
// kubelet may write its annotations, and a record has instances detached, terminated and their
// hooks completed.
func Record(node *corev1.Node) (interruption.Record, error) {
	text, has := node.Annotations[interruption.Annotation]
	if !has {
		return interruption.Record{}, ErrNoRecord
	}
	rec, err := interruption.ParseRecord(text)
	if err != nil {
		return interruption.Record{}, err
	}
	if own := InstanceID(node); IsInstanceID(own) && rec.Instance != own {
		return interruption.Record{}, fmt.Errorf("read record: it is about instance %.64q, and the node is %s", rec.Instance, own)
	}
	return rec, nil
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

// InstanceID is the EC2 instance of a Node: the last path segment of its provider ID
// (aws:///eu-west-1a/i-0123456789abcdef0) if that names one, because nobody can change it.
// Otherwise it comes from the label, which the node's own kubelet can write, or else it is that
// last segment.
func InstanceID(node *corev1.Node) string {
	segment := lastSegment(node)
	if IsInstanceID(segment) {
		return segment
	}
	return cmp.Or(node.Labels[interruption.InstanceIDLabel], segment)
}

func lastSegment(node *corev1.Node) string {
	return node.Spec.ProviderID[strings.LastIndexByte(node.Spec.ProviderID, '/')+1:]
}

var instanceID = regexp.MustCompile(`^i-[0-9a-f]{8,17}$`)

// IsInstanceID reports whether the text is the id of an EC2 instance.
func IsInstanceID(text string) bool { return instanceID.MatchString(text) }

// ReadySince is when the Node became Ready, if it is; also zero if that time is not known.
func ReadySince(node *corev1.Node) (since time.Time, ready bool) {
	if c := Condition(node, corev1.NodeReady); c != nil && c.Status == corev1.ConditionTrue {
		return c.LastTransitionTime.Time, true
	}
	return time.Time{}, false
}

// Condition is the Node's condition of that type, or nil.
func Condition(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &node.Status.Conditions[i]
}

// holder is which of several Nodes of one instance is that instance; nil if there is none. A
// kubelet that registers again under another name leaves its old Node behind, which is soon not
// Ready. Somebody who makes a Node with the provider id of another comes later than that, and
// cannot keep it from being Ready. So it is the oldest that is Ready, or else the youngest. A label
// is no such claim: a kubelet can set it at any age, so it counts only if no provider id names the
// instance.
func holder(found []*corev1.Node) *corev1.Node {
	if slices.ContainsFunc(found, provided) {
		found = slices.DeleteFunc(slices.Clone(found), func(n *corev1.Node) bool { return !provided(n) })
	}
	byAge := func(a, b *corev1.Node) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) }
	ready := slices.DeleteFunc(slices.Clone(found), func(n *corev1.Node) bool { return !Ready(n) })
	switch {
	case len(ready) > 0:
		return slices.MinFunc(ready, byAge)
	case len(found) > 0:
		return slices.MaxFunc(found, byAge)
	}
	return nil
}

// provided reports whether it is a Node's provider id that names its instance.
func provided(node *corev1.Node) bool { return IsInstanceID(lastSegment(node)) }

// addresses are the Node's IP addresses, of each type and family the first. The cloud's controller
// can list an instance's others too, which pods have.
func addresses(node *corev1.Node) (kept []corev1.NodeAddress) {
	for _, a := range node.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || slices.ContainsFunc(kept, func(k corev1.NodeAddress) bool {
			return k.Type == a.Type && strings.Contains(k.Address, ":") == ip.Is6()
		}) {
			continue
		}
		kept = append(kept, corev1.NodeAddress{Type: a.Type, Address: ip.String()})
	}
	return kept
}

func hasRecord(node *corev1.Node) bool {
	_, ok := node.Annotations[interruption.Annotation]
	return ok
}

// concerned reports whether the Node has a record, or still shows a condition of one.
func concerned(node *corev1.Node) bool {
	return hasRecord(node) || slices.ContainsFunc(node.Status.Conditions, OurCondition)
}

// lean drops what nobody here reads. It keeps only our own annotations, and what the conditions Ready and
// ours say. It keeps the labels, which identify pools and zones, and the boot id, which identifies a
// reboot.
func lean(node *corev1.Node) *corev1.Node {
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:              node.Name,
			UID:               node.UID,
			ResourceVersion:   node.ResourceVersion,
			CreationTimestamp: node.CreationTimestamp,
			DeletionTimestamp: node.DeletionTimestamp,
			Labels:            node.Labels,
			OwnerReferences:   node.OwnerReferences,
		},
		Spec: corev1.NodeSpec{
			ProviderID:    node.Spec.ProviderID,
			Unschedulable: node.Spec.Unschedulable,
			Taints:        node.Spec.Taints,
		},
	}
	slim.Status.NodeInfo.BootID = node.Status.NodeInfo.BootID
	slim.Status.Addresses = addresses(node)
	for key, value := range node.Annotations {
		if strings.HasPrefix(key, "spot-handler/") {
			if slim.Annotations == nil {
				slim.Annotations = map[string]string{}
			}
			slim.Annotations[key] = value
		}
	}
	slim.Status.Conditions = leanConditions(node)
	return slim
}
