package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Strategy says what pods wait for before they are evicted.
type Strategy string

const (
	// Surge has the replacement pods of a Deployment's pods made first, as many at a time as the
	// Deployment's maxSurge allows, and evicts the pods when these are available. All other
	// pods are held.
	StrategySurge Strategy = "surge"
	// Hold keeps a pod running until the replacement is ready or its eviction
	// deadline has come.
	StrategyHold Strategy = "hold"
	// AtOnce evicts every pod as soon as the replacement has been requested.
	StrategyAtOnce Strategy = "at-once"
)

// Strategies lists every strategy.
func Strategies() []Strategy { return []Strategy{StrategySurge, StrategyHold, StrategyAtOnce} }

// BlockedPolicy says what becomes of a pod whose eviction is still refused at its latest
// eviction deadline.
type BlockedPolicy string

const (
	// Leave respects the disruption budget to the end: the eviction is tried again until the
	// deadline, and then the pod dies with its node.
	Leave BlockedPolicy = "leave"
	// Delete deletes the pod past its budget, while its grace period still fits.
	Delete BlockedPolicy = "delete"
)

// BlockedPolicies lists every policy.
func BlockedPolicies() []BlockedPolicy { return []BlockedPolicy{Leave, Delete} }

// Capacity is how far the node's replacement has come, as far as a drain has to know.
type Capacity int

const (
	// NoCapacity: no replacement was or could be requested, so there is nothing to wait for.
	NoCapacity Capacity = iota
	// PendingCapacity: requested, and still booting.
	PendingCapacity
	// ReadyCapacity: it takes pods.
	ReadyCapacity
)

// Policy is the operator's part of a plan.
type Policy struct {
	Strategy Strategy
	Blocked  BlockedPolicy
	// Margin is kept free between the planned end of the last pod and the deadline.
	Margin time.Duration
	// Self is the pod that this process runs in, if it runs in one. It goes last.
	Self types.NamespacedName
}

// NodeState is the node's part of a plan.
type NodeState struct {
	// Taint is what the node carries; pods that tolerate it by its name stay.
	Taint corev1.Taint
	// Since is when the node was to be marked. Pods that tolerate every taint and have come later
	// are not chased; zero chases them all.
	Since time.Time
	// Marked is by when the mark was on the node, as writing it can take a while; zero is not known.
	Marked time.Time
	// Deadline is when the node ends. Zero means that the node is only at risk: pods leave
	// when the replacement is ready, and not before.
	Deadline time.Time
	Capacity Capacity
}

// Situation is all that a plan is made from.
type Situation struct {
	NodeState
	Policy Policy

	// First is when the node was planned for the first time; zero is not known.
	First time.Time
	// Ready is since when the replacement is Ready; zero if it is not.
	Ready time.Time
	// Pods are all pods of the node.
	Pods []*corev1.Pod
	// Left are those that had to leave and have left a moment ago.
	Left []Leaving
	// Came is when those of Pods were first seen on the node that have come since it is watched.
	Came map[types.UID]time.Time

	// Budgets are the disruption budgets of the pods' namespaces, as far as they are known.
	Budgets []*policyv1.PodDisruptionBudget
	// Waves are those of the pods of all draining nodes, see planWaves.
	Waves

	// Deployments describes each Deployment, by the name that DeploymentOf gives. One that is
	// missing is not known yet.
	Deployments map[types.NamespacedName]DeploymentState
	// AllReady is since when the replacements of all nodes with pods of a Deployment are Ready;
	// one that is missing waits for some.
	AllReady map[types.NamespacedName]time.Time
	// Shared says whether several pods can use a PersistentVolumeClaim at the same time. One
	// that is missing is not known yet.
	Shared map[types.NamespacedName]bool
	// Constraints are what of a namespace decides whether its pods can be surged. A namespace
	// that is missing is not known yet.
	Constraints map[string]NamespaceConstraints

	// Refused are the pods whose eviction the API server has refused.
	Refused map[types.UID]bool
	// Fixed are the pods that cannot be surged, as was seen when it was tried, and why.
	Fixed map[types.UID]string
	// Answers are what pods have answered to notices, by their UIDs.
	Answers map[types.UID]When
	// Namespaces are what the namespaces of the pods ask for. One that is missing is not known
	// yet.
	Namespaces map[string]Preferences
	// gangs are the departures of the pods' gangs, as their pods on all draining nodes decide them;
	// nil: only those of this node are known.
	Gangs map[Gang]Departure
}

// Action is what a plan says of a pod.
type Action string

const (
	Skip     Action = "skip"   // not ours to move
	Wait     Action = "wait"   // it is already terminating
	Hold     Action = "hold"   // later: at Decision.At, or when the plan's inputs change
	SurgeNow Action = "surge"  // now: have its ReplicaSet make a replacement pod
	Evict    Action = "evict"  // now
	Force    Action = "delete" // now, past its disruption budget
	End      Action = "end"    // now, as its ReplicaSet would have ended it
	Return   Action = "return" // now: give it back to its ReplicaSet
)

// Requests reports whether the action is something to ask of the API server now.
func (a Action) Requests() bool { return a != Skip && a != Wait && a != Hold }

// Decision is the plan for one pod, with the reason for it.
type Decision struct {
	Pod    *corev1.Pod
	Action Action
	Reason string

	// At is when the pod's eviction starts at the latest. It is Latest, or earlier where a
	// disruption budget lets the pods that it covers go only in waves, or where another pod of
	// its gang has to go. Zero means that there is no deadline.
	At time.Time
	// Latest is the pod's eviction deadline: an eviction that starts later cannot give
	// the pod its grace period before the deadline. Zero means that there is no deadline.
	Latest time.Time
	// Until is when the decision changes by the clock, besides At and Latest: the pod's own preference
	// to stay lapses, or its replacement pod has had its time. Zero where it does not.
	Until time.Time
	// Grace overrides the pod's own grace period, in seconds, where that no longer fits; nil
	// otherwise.
	Grace *int64

	// Stays: the node is only at risk, and that is no reason for this pod to leave.
	Stays bool
	// Surge: the pod's replacement pod is made before it leaves.
	Surge bool
	// NoSurge says why not, with the strategy Surge.
	NoSurge string

	// Meaningless is what is asked for the pod in words that mean nothing, and OfNamespace says
	// that its namespace asks it for all of its pods. It changes nothing.
	Meaningless string
	OfNamespace bool
	// Notice is what the pod's NoticeAnnotation asks for, if it is to be notified; it changes nothing
	// either.
	Notice string

	// Deployment is that of a pod that has one by its ReplicaSet's name.
	Deployment types.NamespacedName
	// Waits: the pod is held for what its Deployment has to give, and for nothing else.
	Waits bool
	// Takes: the action needs one of what the Deployment has to give.
	Takes bool
	// DeletedIfRefused: the pod is deleted at Latest if its eviction is still refused.
	DeletedIfRefused bool

	preference preference
	// withGang is when the pod leaves with its gang at the latest; zero if it does not.
	withGang time.Time
}

// Moves reports whether the pod has to leave the node.
func (d Decision) Moves() bool { return d.Action != Skip && !d.Stays }

// Claim is what plans need to know about a PersistentVolumeClaim.
type Claim struct {
	Shared bool   // several nodes can use it at the same time
	Volume string // that it is bound to
}

// Shared reports whether several nodes can use a claim with these access modes at the same time.
func Shared[Mode ~string](modes []Mode) bool {
	return slices.Contains(modes, Mode(corev1.ReadWriteMany)) || slices.Contains(modes, Mode(corev1.ReadOnlyMany))
}
