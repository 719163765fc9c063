package forecast

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
)

// Input is what a forecast is made from: what was read of a cluster, and what is to happen to it.
// Nothing of it is changed.
type Input struct {
	// At is when the cluster was read, which is also the time of the first notice.
	At    time.Time
	Lost  []Lost
	Nodes []*corev1.Node // all, as far as known: successors find a place on the healthy ones
	// Pods are all of the cluster, as far as known.
	Pods    []*corev1.Pod
	Budgets []*policyv1.PodDisruptionBudget
	// Deployments, by name; one that is missing does not exist.
	Deployments map[types.NamespacedName]drain.Deployment
	// Owners are the controllers of pods other than a Deployment's ReplicaSets, by UID. One that is
	// missing is taken for one that replaces its pods at once.
	Owners map[types.UID]Owner
	// Surroundings are those of each namespace.
	Surroundings map[string]drain.Surroundings
	// Shared are the PersistentVolumeClaims that several nodes can use at the same time.
	Shared map[types.NamespacedName]bool
	// Zones are those of the volumes of claims that are bound to one.
	Zones map[types.NamespacedName]string
	// Attached is how many volumes each lost node has to let go of.
	Attached map[string]int
	// Namespaces are what namespaces ask for their pods.
	Namespaces map[string]drain.Wishes
	// Policy is that of the daemon in the cluster, and Settings where it was found.
	Policy   drain.Policy
	Settings string
	// Assumptions are what nobody knows.
	Assumptions Assumptions
	Unread      []string
}

// Lost is a node that EC2 takes.
type Lost struct {
	Node *corev1.Node
	Kind interruption.Kind
	// After is when the notice arrives, after the first; it is negative of one that is Underway.
	After time.Duration
	// Underway: it is interrupted already. That is played, and the forecast is not about it.
	Underway bool
	// Deadline is the time from the notice until EC2 takes the node; nil if there is none.
	Deadline *time.Duration
	// Capacity is what its pods can wait for: PendingCapacity boots for Assumptions.Boot and then
	// takes pods; ReadyCapacity is there at once, as where the pods fit on other nodes.
	Capacity drain.Capacity
	// Replacement is what is told of it, without Ready, which is worked out; nil if nothing is.
	Replacement *Replacement
	// Deleted: when the drain ends, the node's NodeClaim is deleted, and Karpenter deletes what is left
	// on the node, with as much of its grace period as there is until the deadline.
	Deleted bool
	// Becomes is the Node that the replacement will be, empty; nil if it brings no Node of its own.
	Becomes *corev1.Node
}

// Owner is a controller.
type Owner struct {
	Kind, Name string
	Replicas   int
	// InOrder: of a StatefulSet that makes one pod after the other.
	InOrder bool
	// MinReady is how long a pod has to be Ready before it is available.
	MinReady time.Duration
}
