package sim

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Standing is a pod that there is at the beginning. Times are from the beginning, so they are negative.
type Standing struct {
	Name, Workload, Node string
	Ready                bool

	Created, Scheduled time.Duration
	Turned             time.Duration // when its condition Ready has last changed
}

// standing are the pods of a workload, if the scene says which there are.
func (s Scene) standing(workload string) (pods []Standing) {
	for _, p := range s.Pods {
		if p.Workload == workload {
			pods = append(pods, p)
		}
	}
	return pods
}

// stand makes the pod as it stands.
func (w *World) stand(pod *corev1.Pod, p Standing) {
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(w.began.Add(d).Truncate(time.Second)) }
	pod.Spec.NodeName, pod.CreationTimestamp = p.Node, at(p.Created)
	if p.Node != "" {
		started := at(p.Scheduled)
		pod.Status.Phase, pod.Status.StartTime, pod.Status.PodIP = corev1.PodRunning, &started, "10.1.0.1"
		pod.Status.Conditions = conditionsOf(started, at(p.Turned), p.Ready)
	}
}

// StopsAfter is how long a pod of that name takes to end, if it may.
func (s Scene) StopsAfter(of *Workload, pod string) time.Duration {
	return Draw(s.Seed).Between(of.Stop*8/10, of.Stop, pod, "stops")
}

// CollectedAfter is how long after the end of its machine a Node is removed.
func (s Scene) CollectedAfter(node string) time.Duration {
	return Draw(s.Seed).Between(5*time.Second, 100*time.Second, node, "collected")
}
