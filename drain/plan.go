package drain

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// Strategy says what pods wait for before they are evicted.
type Strategy string

const (
	// Hold keeps a pod running until the replacement is ready or its latest safe
	// start has come.
	Hold Strategy = "hold"
	// AtOnce evicts every pod as soon as the replacement has been requested.
	AtOnce Strategy = "at-once"
)

// Strategies lists every strategy.
func Strategies() []Strategy { return []Strategy{Hold, AtOnce} }

// Capacity is how far the node's replacement is, as far as a drain has to know.
type Capacity int

const (
	// NoCapacity: nothing was or could be requested: there is nothing to wait for.
	NoCapacity Capacity = iota
	// PendingCapacity: requested, and still booting.
	PendingCapacity
	// ReadyCapacity: it takes pods.
	ReadyCapacity
)

// Policy is the operator's part of a plan.
type Policy struct {
	Strategy Strategy
	// Margin is kept free between the planned end of the last pod and the deadline.
	Margin time.Duration
}

// Interruption is the node's part of a plan.
type Interruption struct {
	// Taint is what the node carries; pods that tolerate it stay.
	Taint corev1.Taint
	// Deadline is when the node ends. Where it is zero the node is only at risk:
	// pods leave when the replacement is ready, and not before.
	Deadline time.Time
	Capacity Capacity
}

// Action is what a plan says of a pod.
type Action string

const (
	Skip  Action = "skip"  // not ours to move
	Wait  Action = "wait"  // it is terminating already
	Later Action = "hold"  // later: at Decision.At, or when the plan's inputs change
	Evict Action = "evict" // now
)

// Decision is the plan for one pod, with the reason for it.
type Decision struct {
	Pod    *corev1.Pod
	Action Action
	Reason string

	// At is the pod's latest safe start: an eviction that starts later cannot give
	// the pod its grace period before the deadline. Zero where there is no deadline.
	At time.Time
	// Grace overrides the pod's own grace period, in seconds, where that does not
	// fit any more; nil otherwise.
	Grace *int64
}

// Moves reports whether the pod has to leave the node.
func (d Decision) Moves() bool { return d.Action != Skip }

// Plan decides about every pod of a node, exactly once, earliest latest start
// first. It has no side effects and reads no clock.
func Plan(now time.Time, pods []*corev1.Pod, in Interruption, policy Policy) []Decision {
	plan := make([]Decision, 0, len(pods))
	for _, pod := range pods {
		plan = append(plan, decide(now, pod, in, policy))
	}
	slices.SortStableFunc(plan, func(a, b Decision) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return plan
}

// decide applies the rules in their order; the first that has something to say
// about a pod is its decision.
func decide(now time.Time, pod *corev1.Pod, in Interruption, policy Policy) Decision {
	if reason := notOurs(pod, in); reason != "" {
		return Decision{Pod: pod, Action: Skip, Reason: reason}
	}
	d := Decision{Pod: pod, At: latestStart(pod, in.Deadline, policy.Margin)}
	d.Grace = clampedGrace(now, pod, in.Deadline, policy.Margin)
	switch {
	case pod.DeletionTimestamp != nil:
		d.Action, d.Reason = Wait, "terminating"
	case in.Deadline.IsZero() && in.Capacity != ReadyCapacity:
		d.Action, d.Reason = Later, "no deadline: waits for a replacement"
	case in.Deadline.IsZero() && pinned(pod) != "":
		d.Action, d.Reason = Later, "no deadline: "+pinned(pod)
	case in.Deadline.IsZero():
		d.Action, d.Reason = Evict, "replacement is ready"
	case !now.Before(d.At):
		d.Action, d.Reason = Evict, "latest safe start has come"
	case pinned(pod) != "":
		d.Action, d.Reason = Later, pinned(pod)
	case policy.Strategy == Hold && in.Capacity == PendingCapacity:
		d.Action, d.Reason = Later, "waits for the replacement"
	case in.Capacity == ReadyCapacity:
		d.Action, d.Reason = Evict, "replacement is ready"
	default:
		d.Action, d.Reason = Evict, "nothing to wait for"
	}
	return d
}

// notOurs gives the reason to leave a pod where it is, or "".
func notOurs(pod *corev1.Pod, in Interruption) string {
	switch {
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return "mirror pod"
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return "finished"
	case IsDaemon(pod):
		return "DaemonSet pod"
	case tolerates(pod, in.Taint):
		return "tolerates " + in.Taint.Key
	}
	return ""
}

// IsDaemon reports whether a DaemonSet made the pod: it would be made again on the
// same node, whatever its taints.
func IsDaemon(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

func tolerates(pod *corev1.Pod, taint corev1.Taint) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.ToleratesTaint(klog.Logger{}, &taint, false)
	})
}

// Why owners ask that a pod be moved as late as possible.
const (
	doNotDisrupt = "karpenter.sh/do-not-disrupt"
	safeToEvict  = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

// pinned gives the reason why a pod is to be moved as late as possible, or "".
func pinned(pod *corev1.Pod) string {
	owner := metav1.GetControllerOf(pod)
	switch {
	case pod.Annotations[doNotDisrupt] == "true":
		return doNotDisrupt
	case pod.Annotations[safeToEvict] == "false":
		return safeToEvict + "=false"
	case owner != nil && owner.Kind == "Job":
		return "Job pod: may finish by itself"
	}
	return ""
}

// latestStart is when the pod's eviction has to start at the latest to give it its
// grace period, and all of it, before the deadline less the margin.
func latestStart(pod *corev1.Pod, deadline time.Time, margin time.Duration) time.Time {
	if deadline.IsZero() {
		return time.Time{}
	}
	return deadline.Add(-margin - grace(pod))
}

// clampedGrace is what is left of the pod's grace period, in whole seconds, where
// it does not fit any more; nil where it does. It is never below one second: zero
// would delete the pod before the kubelet has stopped it, and a StatefulSet could
// run twice.
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination-forced
func clampedGrace(now time.Time, pod *corev1.Pod, deadline time.Time, margin time.Duration) *int64 {
	if deadline.IsZero() {
		return nil
	}
	left := deadline.Add(-margin).Sub(now)
	if left >= grace(pod) {
		return nil
	}
	seconds := max(1, int64(left/time.Second))
	if seconds >= int64(grace(pod)/time.Second) {
		return nil
	}
	return &seconds
}

// grace is the pod's own grace period.
func grace(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	return time.Duration(seconds) * time.Second
}
