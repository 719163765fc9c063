package plan

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/drain/forecast"
)

// What is kept of each object: a forecast has all pods of a cluster in memory.

// annotations are kept if they begin like this: others say nothing about a drain.
var annotations = []string{"spot-handler/", "karpenter.sh/", "cluster-autoscaler.kubernetes.io/", corev1.MirrorPodAnnotationKey}

func lean(pod *corev1.Pod) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, GenerateName: pod.GenerateName,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Labels: pod.Labels, OwnerReferences: pod.OwnerReferences, Annotations: map[string]string{},
		},
		Spec: corev1.PodSpec{
			NodeName: pod.Spec.NodeName, NodeSelector: pod.Spec.NodeSelector, Affinity: pod.Spec.Affinity, Tolerations: pod.Spec.Tolerations,
			TopologySpreadConstraints: pod.Spec.TopologySpreadConstraints, TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
			Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources, Priority: pod.Spec.Priority, SchedulerName: pod.Spec.SchedulerName,
			Containers: leanContainers(pod.Spec.Containers), InitContainers: leanContainers(pod.Spec.InitContainers),
			Volumes: slices.DeleteFunc(pod.Spec.Volumes, passing), ResourceClaims: pod.Spec.ResourceClaims,
			SchedulingGroup: pod.Spec.SchedulingGroup,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime},
	}
	for key, value := range pod.Annotations {
		if slices.ContainsFunc(annotations, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			p.Annotations[key] = value
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled || c.Type == corev1.PodReady {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime})
		}
	}
	return p
}

// passing reports whether the volume is made for the pod and ends with it.
func passing(v corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.EmptyDir != nil || v.Projected != nil || v.DownwardAPI != nil || v.HostPath != nil
}

func leanContainers(containers []corev1.Container) []corev1.Container {
	slim := make([]corev1.Container, len(containers))
	for i, c := range containers {
		slim[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy, Ports: c.Ports}
	}
	return slim
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

// ownerOf reads a ReplicaSet or a StatefulSet; the API server has filled in its fields.
func ownerOf(u *unstructured.Unstructured) forecast.Owner {
	replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
	policy, _, _ := unstructured.NestedString(u.Object, "spec", "podManagementPolicy")
	return forecast.Owner{Kind: u.GetKind(), Name: u.GetName(), Replicas: int(replicas), InOrder: u.GetKind() == "StatefulSet" && policy != "Parallel"}
}

// shared reports whether several nodes can use the claim's volume at the same time.
func shared(claim *unstructured.Unstructured) bool {
	modes, _, _ := unstructured.NestedStringSlice(claim.Object, "spec", "accessModes")
	return slices.Contains(modes, string(corev1.ReadWriteMany)) || slices.Contains(modes, string(corev1.ReadOnlyMany))
}

// zoneOf is the zone that a PersistentVolume is bound to, if it is to one.
func zoneOf(volume *unstructured.Unstructured) string {
	terms, _, _ := unstructured.NestedSlice(volume.Object, "spec", "nodeAffinity", "required", "nodeSelectorTerms")
	for _, term := range terms {
		t, _ := term.(map[string]any)
		expressions, _, _ := unstructured.NestedSlice(t, "matchExpressions")
		for _, expression := range expressions {
			e, _ := expression.(map[string]any)
			key, _, _ := unstructured.NestedString(e, "key")
			values, _, _ := unstructured.NestedStringSlice(e, "values")
			if strings.HasSuffix(key, "/zone") && len(values) == 1 {
				return values[0]
			}
		}
	}
	return ""
}
