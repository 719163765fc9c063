package cluster

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain"
)

// lean is what drains keep of a pod, and what besides a forecast plays and audit checks; nil if the
// pod has finished.
func lean(pod *corev1.Pod) *corev1.Pod {
	if drain.Finished(pod) {
		return nil
	}
	slim := drain.Lean(pod)
	slim.GenerateName, slim.Spec.Priority, slim.Spec.ReadinessGates = pod.GenerateName, pod.Spec.Priority, pod.Spec.ReadinessGates
	for i, c := range slim.Status.Conditions {
		at := slices.IndexFunc(pod.Status.Conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
		slim.Status.Conditions[i].Reason = pod.Status.Conditions[at].Reason
	}
	keepProbes(slim.Spec.Containers, pod.Spec.Containers)
	keepProbes(slim.Spec.InitContainers, pod.Spec.InitContainers)
	return slim
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

func leanNode(n *corev1.Node) *corev1.Node {
	slim := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels, Annotations: n.Annotations, OwnerReferences: n.OwnerReferences,
		CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp,
	}, Spec: n.Spec}
	slim.Status.Allocatable, slim.Status.Conditions = n.Status.Allocatable, n.Status.Conditions
	slim.Status.NodeInfo.BootID = n.Status.NodeInfo.BootID
	return slim
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
	zones := map[string]bool{}
	only := ""
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		here := false
		for _, e := range term.MatchExpressions {
			if slices.Contains(zoneKeys, e.Key) && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) > 0 {
				here = true
				for _, zone := range e.Values {
					zones[zone], only = true, zone
				}
			}
		}
		if !here {
			return "" // this term takes any
		}
	}
	if len(zones) != 1 {
		return ""
	}
	return only
}
