package plan

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// What a plan reads from a single pod, and which budgets cover it.

// tolerates reports whether the pod tolerates the taint by its name: its owner wants it to
// stay on interrupted nodes.
func tolerates(pod *corev1.Pod, taint corev1.Taint) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Key == taint.Key && t.ToleratesTaint(klog.Logger{}, &taint, false)
	})
}

// ToleratesAll reports whether the pod tolerates every taint, ours among them, as some
// operators and many charts have it. That says nothing of interruptions. It also tolerates
// the cordon: evicted, it might be put back on the same node.
// https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#concepts
func ToleratesAll(pod *corev1.Pod, taint corev1.Taint) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Key == "" && t.ToleratesTaint(klog.Logger{}, &taint, false)
	})
}

// Finished reports whether the pod's containers will not run again.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// DoNotDisrupt asks that a pod not be disrupted: "true", or for a duration since the pod
// started, such as "4h".
const DoNotDisrupt = "karpenter.sh/do-not-disrupt"

// DoNotDisruptActive reports whether the pod asks not to be disrupted at this moment, and until when;
// zero is for good. Anything but "true" and a positive duration asks for nothing. A pod that
// has not started is protected.
//
// The rule is Karpenter's own, IsDoNotDisruptActive in
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/utils/pod/scheduling.go
func DoNotDisruptActive(pod *corev1.Pod, now time.Time) (until time.Time, active bool) {
	value, ok := pod.Annotations[DoNotDisrupt]
	if value == "true" {
		return time.Time{}, true
	}
	duration, err := time.ParseDuration(value)
	if !ok || err != nil || duration <= 0 {
		return time.Time{}, false
	}
	if pod.Status.StartTime == nil {
		return time.Time{}, true
	}
	until = pod.Status.StartTime.Add(duration)
	return until, now.Before(until)
}

// SafeToEvict is how owners ask Cluster Autoscaler that a pod stay.
const SafeToEvict = "cluster-autoscaler.kubernetes.io/safe-to-evict"

// pinned is the reason to move a pod as late as possible, or "". until is when that lapses;
// zero is never.
func pinned(pod *corev1.Pod, now time.Time) (reason string, until time.Time) {
	owner := metav1.GetControllerOf(pod)
	until, active := DoNotDisruptActive(pod, now)
	switch {
	case active && until.IsZero():
		return DoNotDisrupt, until
	case pod.Annotations[SafeToEvict] == "false":
		return SafeToEvict + "=false", time.Time{}
	case owner != nil && owner.Kind == "Job":
		return "Job pod: might finish by itself", time.Time{}
	case active:
		return DoNotDisrupt + " for " + pod.Annotations[DoNotDisrupt], until
	}
	return "", time.Time{}
}

// Ready reports whether the pod is Ready, and since when.
func Ready(pod *corev1.Pod) (since time.Time, ok bool) {
	c := Condition(pod, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return time.Time{}, false
	}
	return c.LastTransitionTime.Time, true
}

// Condition is the pod's condition of that kind, or nil.
func Condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// HasVolumes reports whether volumes have to be detached from the node after the pod has
// gone.
func HasVolumes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	})
}

// isDisk reports whether the volume is a disk that the pod names itself, and that one node
// has at a time.
func isDisk(v corev1.Volume) bool {
	return v.AWSElasticBlockStore != nil || v.GCEPersistentDisk != nil || v.AzureDisk != nil ||
		v.Cinder != nil || v.VsphereVolume != nil || v.ISCSI != nil || v.FC != nil || v.RBD != nil
}

// IsDaemon reports whether a DaemonSet made the pod. Then it would be made again on the
// same node, whatever the node's taints.
func IsDaemon(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

// goesLast reports whether a DaemonSet's pod asks to be evicted once all others have gone, as a log shipper
// or a member of a cluster does that has something to finish.
func goesLast(daemon *corev1.Pod) bool { return When(daemon.Annotations[WhenAnnotation]) == WhenLast }

// DeploymentOf names the Deployment that owns a pod through a ReplicaSet, or owned it before
// it was surged; empty if there is none. It goes by the ReplicaSet's name, which is the
// Deployment's and the pod-template-hash: whether that Deployment exists, and selects the
// pod, has to be looked up.
func DeploymentOf(pod *corev1.Pod) types.NamespacedName {
	set, hash := "", pod.Labels[HashLabel]
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "ReplicaSet" {
		set = owner.Name
	}
	if IsSurged(pod) {
		set, hash = surgeNoteOf(pod).ReplicaSet, pod.Labels[SurgedLabel]
	}
	name, ok := strings.CutSuffix(set, "-"+hash)
	if hash == "" || !ok || name == "" {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: pod.Namespace, Name: name}
}

// WorkloadOf is what people know the pod by: the Deployment that DeploymentOf names, or else what
// has made it; empty if nothing has.
func WorkloadOf(pod *corev1.Pod) (kind, name string) {
	if of := DeploymentOf(pod); of.Name != "" {
		return "Deployment", of.Name
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return owner.Kind, owner.Name
	}
	return "", ""
}

// ClaimsOf names a pod's PersistentVolumeClaims, which other pods could use too. A generic
// ephemeral volume is the pod's own: its replacement pod gets another.
func ClaimsOf(pod *corev1.Pod) []types.NamespacedName {
	var names []types.NamespacedName
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			names = append(names, types.NamespacedName{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName})
		}
	}
	return names
}

// CutShort reports whether a pod is terminating with less grace than it asks for.
func CutShort(pod *corev1.Pod) bool {
	own, left := pod.Spec.TerminationGracePeriodSeconds, pod.DeletionGracePeriodSeconds
	return own != nil && left != nil && *left < *own
}
