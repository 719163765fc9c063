package drain

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Strategy says what pods wait for before they are evicted.
type Strategy string

const (
	// Surge has the replacement pods of a Deployment's pods made first, as many at a time as the
	// Deployment's maxSurge allows, and evicts the pods when these are available. All other
	// pods are held.
	Surge Strategy = "surge"
	// Hold keeps a pod running until the replacement is ready or its eviction
	// deadline has come.
	Hold Strategy = "hold"
	// AtOnce evicts every pod as soon as the replacement has been requested.
	AtOnce Strategy = "at-once"
)

// Strategies lists every strategy.
func Strategies() []Strategy { return []Strategy{Surge, Hold, AtOnce} }

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

// Interruption is the node's part of a plan.
type Interruption struct {
	// Taint is what the node carries; pods that tolerate it by its name stay.
	Taint corev1.Taint
	// Since is when the node was marked. Pods that tolerate every taint and have come later
	// are not chased; zero chases them all.
	Since time.Time
	// Deadline is when the node ends. Zero means that the node is only at risk: pods leave
	// when the replacement is ready, and not before.
	Deadline time.Time
	Capacity Capacity
}

// Situation is all that a plan is made from.
type Situation struct {
	Interruption
	Policy Policy

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
	// Waves are those of the pods of all draining nodes, see PlanWaves.
	Waves

	// Workloads describes each Deployment, by the name that DeploymentOf gives. One that is
	// missing is not known yet.
	Workloads map[types.NamespacedName]Workload
	// AllReady is since when the replacements of all nodes with pods of a Deployment are Ready;
	// one that is missing waits for some.
	AllReady map[types.NamespacedName]time.Time
	// Shared says whether several pods can use a PersistentVolumeClaim at the same time. One
	// that is missing is not known yet.
	Shared map[types.NamespacedName]bool
	// Surroundings are what of a namespace decides whether its pods can be surged. A namespace
	// that is missing is not known yet.
	Surroundings map[string]Surroundings

	// Refused are the pods whose eviction the API server has refused.
	Refused map[types.UID]bool
	// Fixed are the pods that cannot be surged, as was seen when it was tried, and why.
	Fixed map[types.UID]string
	// Answers are what pods have answered to notices, by their UIDs.
	Answers map[types.UID]When
	// Namespaces are what the namespaces of the pods ask for. One that is missing is not known
	// yet.
	Namespaces map[string]Preferences
	// Gangs are the departures of the pods' gangs, as their pods on all draining nodes decide them;
	// nil: only those of this node are known.
	Gangs map[Gang]Departure
}

// Action is what a plan says of a pod.
type Action string

const (
	Skip     Action = "skip"   // not ours to move
	Wait     Action = "wait"   // it is already terminating
	Later    Action = "hold"   // later: at Decision.At, or when the plan's inputs change
	SurgeNow Action = "surge"  // now: have its ReplicaSet make a replacement pod
	Evict    Action = "evict"  // now
	Force    Action = "delete" // now, past its disruption budget
	End      Action = "end"    // now, as its ReplicaSet would have ended it
	Return   Action = "return" // now: give it back to its ReplicaSet
)

// Requests reports whether the action is something to ask of the API server now.
func (a Action) Requests() bool { return a != Skip && a != Wait && a != Later }

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

	preference preference
	// withGang is when the pod leaves with its gang at the latest; zero if it does not.
	withGang time.Time
	// workload is the Deployment of a pod that has one by its ReplicaSet's name.
	workload types.NamespacedName
	// waits: the pod is held for what the workload has to give, and for nothing else.
	waits bool
	// takes: the action needs one of what the workload has to give.
	takes bool
	// deletedIfRefused: the pod is deleted at Latest if its eviction is still refused.
	deletedIfRefused bool
}

// Moves reports whether the pod has to leave the node.
func (d Decision) Moves() bool { return d.Action != Skip && !d.Stays }

// PodsOn reads the pods of a node.
func PodsOn(ctx context.Context, client rest.Interface, node string) ([]*corev1.Pod, error) {
	list := &corev1.PodList{}
	// "0" is answered from the watch cache's index of nodes, and is no quorum read.
	err := client.Get().Resource("pods").Param("fieldSelector", "spec.nodeName="+node).Param("resourceVersion", "0").Do(ctx).Into(list)
	if err != nil {
		return nil, fmt.Errorf("list pods on node %q: %w", node, err)
	}
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return pods, nil
}

// Survey reads once what a plan for the node is made from, for a dry run. It watches nothing
// and changes nothing. Pods of other nodes under the same budgets are not included.
func Survey(ctx context.Context, pods, budgets rest.Interface, objects dynamic.Interface, node string, in Interruption, policy Policy) (Situation, error) {
	sit := Situation{Interruption: in, Policy: policy}
	var err error
	if sit.Pods, err = PodsOn(ctx, pods, node); err != nil {
		return sit, err
	}
	sit.gather(time.Now(), sources{
		asks:     atOnce(ctx, &err, readPreferences(objects)),
		around:   atOnce(ctx, &err, readSurroundings(objects)),
		claim:    atOnce(ctx, &err, readClaim(objects)),
		budgets:  atOnce(ctx, &err, readBudgets(budgets)),
		workload: atOnce(ctx, &err, readWorkload(pods, objects)),
		allReady: func(types.NamespacedName) time.Time { return time.Time{} },
	})
	if err != nil {
		return sit, err
	}
	sit.Gangs = sit.Departures()
	sit.Waves = PlanWaves(time.Now(), []Situation{sit}, sit.Budgets)
	return sit, nil
}

// atOnce reads when it is asked, until the first error.
func atOnce[T any](ctx context.Context, failed *error, read func(context.Context, types.NamespacedName) (T, error)) func(types.NamespacedName) (T, bool) {
	return func(name types.NamespacedName) (value T, ok bool) {
		if *failed == nil {
			value, *failed = read(ctx, name)
		}
		return value, *failed == nil
	}
}

func readBudgets(client rest.Interface) func(context.Context, types.NamespacedName) ([]*policyv1.PodDisruptionBudget, error) {
	return func(ctx context.Context, in types.NamespacedName) (found []*policyv1.PodDisruptionBudget, err error) {
		list := &policyv1.PodDisruptionBudgetList{}
		if err := client.Get().Namespace(in.Namespace).Resource("poddisruptionbudgets").Do(ctx).Into(list); err != nil {
			return nil, fmt.Errorf("list disruption budgets of namespace %q: %w", in.Namespace, err)
		}
		for i := range list.Items {
			found = append(found, &list.Items[i])
		}
		return found, nil
	}
}

func readWorkload(pods rest.Interface, objects dynamic.Interface) func(context.Context, types.NamespacedName) (Workload, error) {
	return func(ctx context.Context, name types.NamespacedName) (Workload, error) {
		u, err := objects.Resource(deploymentResource).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(err) {
			return Workload{}, nil
		}
		if err != nil {
			return Workload{}, fmt.Errorf("read Deployment %s: %w", name, err)
		}
		d, list := asDeployment(u), &corev1.PodList{}
		if d.Spec.Selector == nil {
			return Workload{}, fmt.Errorf("read Deployment %s: %w", name, d.unreadable())
		}
		err = pods.Get().Namespace(name.Namespace).Resource("pods").Param("labelSelector", metav1.FormatLabelSelector(d.Spec.Selector)).
			Param("resourceVersion", "0").Do(ctx).Into(list)
		if err != nil {
			return Workload{}, fmt.Errorf("list pods of Deployment %s: %w", name, err)
		}
		var theirs []*Member
		for i := range list.Items {
			theirs = append(theirs, MemberOf(&list.Items[i]))
		}
		w, _ := NewTally().count(time.Now(), d, theirs)
		return w, nil
	}
}
