package cluster

import (
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// lean is what drains keep of a pod, and what besides a forecast plays and audit checks; nil if the
// pod has finished.
func lean(pod *corev1.Pod) *corev1.Pod {
	if plan.Finished(pod) {
		return nil
	}
	slim := plan.Lean(pod)
	slim.GenerateName, slim.Spec.Priority, slim.Spec.ReadinessGates = pod.GenerateName, pod.Spec.Priority, pod.Spec.ReadinessGates
	for i, c := range slim.Status.Conditions {
		at := slices.IndexFunc(pod.Status.Conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
		slim.Status.Conditions[i].Reason = pod.Status.Conditions[at].Reason
	}
	keepProbes(slim.Spec.Containers, pod.Spec.Containers)
	keepProbes(slim.Spec.InitContainers, pod.Spec.InitContainers)
	return slim
}

// alike has pods share labels and containers with others of their controller that have the same, which
// in a large cluster is nearly half of what is kept of pods.
type alike map[types.UID]*corev1.Pod

func (a alike) share(pod *corev1.Pod) *corev1.Pod {
	if pod == nil || len(pod.OwnerReferences) == 0 {
		return pod
	}
	owner := pod.OwnerReferences[0].UID
	other := a[owner]
	if other == nil {
		a[owner] = pod
		return pod
	}
	if maps.Equal(pod.Labels, other.Labels) {
		pod.Labels = other.Labels
	}
	if reflect.DeepEqual(pod.Spec.Containers, other.Spec.Containers) {
		pod.Spec.Containers = other.Spec.Containers
	}
	return pod
}

// keepProbes keeps whether containers have probes, and what they do before they stop.
func keepProbes(slim, whole []corev1.Container) {
	for i, c := range whole {
		if c.ReadinessProbe != nil || c.StartupProbe != nil {
			slim[i].ReadinessProbe = &corev1.Probe{}
		}
		if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
			slim[i].Lifecycle = &corev1.Lifecycle{PreStop: c.Lifecycle.PreStop}
		}
	}
}

// leanNode drops what fills most of a Node.
func leanNode(n *corev1.Node) *corev1.Node {
	n.ManagedFields = nil
	n.Status = corev1.NodeStatus{
		Allocatable: n.Status.Allocatable,
		Conditions:  n.Status.Conditions,
		NodeInfo:    corev1.NodeSystemInfo{BootID: n.Status.NodeInfo.BootID},
	}
	return n
}

// Event is what is kept of an Event, which anybody can write, of any size.
func Event(e *corev1.Event) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: e.Name, Namespace: e.Namespace, UID: e.UID, ResourceVersion: e.ResourceVersion},
		InvolvedObject: e.InvolvedObject, Type: e.Type, Reason: e.Reason, Message: interruption.Clip(e.Message),
		FirstTimestamp: e.FirstTimestamp, LastTimestamp: e.LastTimestamp, Count: e.Count,
	}
}

// zoneKeys are the labels by which volumes name the zone of their nodes: that of Kubernetes, and
// that of the driver of EBS.
// https://github.com/kubernetes-sigs/aws-ebs-csi-driver/blob/master/docs/install.md
var zoneKeys = []string{corev1.LabelTopologyZone, "topology.ebs.csi.aws.com/zone"}

// onlyZone is the zone that a volume cannot leave, or empty.
func onlyZone(v *corev1.PersistentVolume) string {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return ""
	}
	zones := sets.New[string]()
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		here := false
		for _, e := range term.MatchExpressions {
			if slices.Contains(zoneKeys, e.Key) && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) > 0 {
				here = true
				zones.Insert(e.Values...)
			}
		}
		if !here {
			return "" // this term takes any
		}
	}
	only, _ := zones.PopAny()
	if zones.Len() > 0 {
		return ""
	}
	return only
}

func leanBudget(b *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: b.Name, Namespace: b.Namespace, Generation: b.Generation},
		Spec:       b.Spec,
		Status:     b.Status,
	}
}

func leanClaim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name, Namespace: c.Namespace},
		Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: c.Spec.AccessModes},
	}
}

func leanVolume(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		ClaimRef:     v.Spec.ClaimRef,
		NodeAffinity: v.Spec.NodeAffinity,
	}}
}
