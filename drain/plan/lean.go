package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Lean drops everything of a pod that no plan and no replacement reads, which is most of it.
func Lean(pod *corev1.Pod) *corev1.Pod {
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:                       pod.Name,
			Namespace:                  pod.Namespace,
			UID:                        pod.UID,
			ResourceVersion:            pod.ResourceVersion,
			CreationTimestamp:          pod.CreationTimestamp,
			DeletionTimestamp:          pod.DeletionTimestamp,
			DeletionGracePeriodSeconds: pod.DeletionGracePeriodSeconds,
			Labels:                     pod.Labels,
			Annotations:                map[string]string{},
			OwnerReferences:            pod.OwnerReferences,
		},
		Spec: corev1.PodSpec{
			NodeName:                      pod.Spec.NodeName,
			TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
			NodeSelector:                  pod.Spec.NodeSelector,
			Affinity:                      pod.Spec.Affinity,
			TopologySpreadConstraints:     pod.Spec.TopologySpreadConstraints,
			Tolerations:                   pod.Spec.Tolerations,
			Overhead:                      pod.Spec.Overhead,
			Resources:                     pod.Spec.Resources,
			Containers:                    leanContainers(asGiven(pod, pod.Spec.Containers, pod.Status.ContainerStatuses)),
			InitContainers:                leanContainers(asGiven(pod, pod.Spec.InitContainers, pod.Status.InitContainerStatuses)),
			Volumes:                       leanVolumes(pod.Spec.Volumes),
			ResourceClaims:                pod.Spec.ResourceClaims,
			SchedulerName:                 pod.Spec.SchedulerName,
			SchedulingGroup:               pod.Spec.SchedulingGroup,
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, StartTime: pod.Status.StartTime},
	}
	for _, key := range []string{corev1.MirrorPodAnnotationKey, DoNotDisrupt, SafeToEvict, BlockedAnnotation, WhenAnnotation, SurgedAnnotation,
		NoticeAnnotation, NoticeReplacementAnnotation, DeadlineAnnotation, EvictByAnnotation} {
		if value, ok := pod.Annotations[key]; ok {
			slim.Annotations[key] = value
		}
	}
	if pod.Annotations[NoticeAnnotation] != "" {
		slim.Spec.HostNetwork, slim.Status.PodIP = pod.Spec.HostNetwork, pod.Status.PodIP
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady} {
		if c := Condition(pod, kind); c != nil {
			slim.Status.Conditions = append(slim.Status.Conditions, corev1.PodCondition{
				Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			})
		}
	}
	return slim
}

func leanContainers(containers []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return nil
	}
	slim := make([]corev1.Container, len(containers))
	for i, c := range containers {
		slim[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy, Ports: hostPorts(c.Ports)}
	}
	return slim
}

// asGiven are the pod's containers. If it was resized to more than its node can ever give, they request
// what the node has given them: anybody who may resize a pod can ask for any amount.
// https://kubernetes.io/docs/tasks/configure-pod-container/resize-container-resources/#pod-resize-status
func asGiven(pod *corev1.Pod, containers []corev1.Container, statuses []corev1.ContainerStatus) []corev1.Container {
	c := Condition(pod, corev1.PodResizePending)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason != corev1.PodReasonInfeasible {
		return containers
	}
	has := map[string]corev1.ResourceList{}
	for _, s := range statuses {
		has[s.Name] = s.AllocatedResources
		if s.Resources != nil {
			has[s.Name] = s.Resources.Requests
		}
	}
	containers = slices.Clone(containers)
	for i, c := range containers {
		containers[i].Resources.Requests = has[c.Name]
	}
	return containers
}

// hostPorts are those that only one pod of a node can have.
func hostPorts(ports []corev1.ContainerPort) (kept []corev1.ContainerPort) {
	for _, p := range ports {
		if p.HostPort != 0 {
			kept = append(kept, p)
		}
	}
	return kept
}

// leanVolumes keeps the volumes that outlive the pod or that one node has at a time.
func leanVolumes(volumes []corev1.Volume) (kept []corev1.Volume) {
	for _, v := range volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil || isDisk(v) {
			kept = append(kept, v)
		}
	}
	return kept
}
