package drain

import (
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/rewatch"
)

// podsOfNamespace is how many pods of one namespace are known of one node, more than any node runs. With
// spec.nodeName, a tenant can put any number on a node whose kubelet no longer answers.
const podsOfNamespace = 1000

// newPodWatch is of the node's pods. Every draining node has one.
func newPodWatch(opts Options, node string, changed func(before, after *corev1.Pod), synced func()) *rewatch.Watch[*corev1.Pod] {
	known := map[string]int{} // by namespace
	return rewatch.New(rewatch.Options[*corev1.Pod, *corev1.Pod]{
		Source: listedFirst{cache.NewFilteredListWatchFromClient(opts.Pods, "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
		})},
		Keep: Lean, Synced: synced, Logger: opts.Logger,
		Admit: func(pod *corev1.Pod) bool {
			// What the kubelet has rejected stays, finished, by the thousand.
			over := Finished(pod) && pod.DeletionTimestamp == nil
			return !over && known[pod.Namespace] < podsOfNamespace
		},
		Changed: func(before, after *corev1.Pod) {
			if before == nil {
				known[after.Namespace]++
			}
			if after == nil {
				if known[before.Namespace]--; known[before.Namespace] == 0 {
					delete(known, before.Namespace)
				}
			}
			changed(before, after)
		},
	})
}

// listedFirst has a reflector list before it watches. The API server finds the pods of one node by
// an index for a list, but not for a watch that begins with them: there it copies and sorts all pods
// of the cluster, under a lock.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/apiserver/pkg/storage/cacher/watch_cache_interval.go
type listedFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is what client-go asks, by this name.
func (listedFirst) IsWatchListSemanticsUnSupported() bool { return true }

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

// A pod that leaves is seen three or four times on its way out, and most of that does not
// matter, as it was we who sent it away. When each change had the node planned again, two
// thousand pods that left a hundred nodes cost as much processor time for plans as for
// everything else.

// quietFor is how long a change that does not concern the node's other pods waits until the
// node is planned again. It delays what is reported of the drain, never an eviction or the
// drain's end.
const quietFor = 500 * time.Millisecond

// changed has the node planned again after a pod has come, changed or gone: at once, in a moment if the
// pod only goes on leaving, or not at all if no plan reads what has changed.
func (s *session) changed(was, is *corev1.Pod) {
	switch {
	case !s.watch.HasSynced(): // the first list
	case is == nil:
		s.note(func() { delete(s.came, was.UID) })
		s.departed()
	case was == nil || was.UID != is.UID:
		s.note(func() {
			if was != nil {
				delete(s.came, was.UID)
			}
			s.came[is.UID] = time.Now()
		})
		s.drainer.opts.Notify(s.node)
	case same(was, is):
	case is.DeletionTimestamp == nil || IsSurged(was) != IsSurged(is):
		s.drainer.opts.Notify(s.node)
	case Finished(is) && !Finished(was):
		s.departed()
	default:
		s.notifySoon()
	}
}

// same reports whether nothing that Lean keeps has changed.
func same(a, b *corev1.Pod) bool {
	as := *a
	as.ResourceVersion = b.ResourceVersion
	return reflect.DeepEqual(&as, b)
}

// departed has the node planned again after a pod has gone: in a moment, or at once if it
// was the last, or the last besides our own.
func (s *session) departed() {
	s.mu.Lock()
	sit := Situation{Interruption: s.in, Came: maps.Clone(s.came)}
	s.mu.Unlock()
	sit.Policy, sit.Pods = s.drainer.opts.Policy, s.watch.All()
	if p := (planner{Situation: sit}); p.others() {
		s.notifySoon()
		return
	}
	s.drainer.opts.Notify(s.node)
}

// notifySoon calls Notify in a moment, once for everything that happens until then.
func (s *session) notifySoon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.soon {
		return
	}
	s.soon = true
	time.AfterFunc(quietFor, func() {
		s.note(func() { s.soon = false })
		if s.ctx.Err() == nil {
			s.drainer.opts.Notify(s.node)
		}
	})
}
