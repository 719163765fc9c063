package sim

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/sim/memapi"
)

// failures are the pods of a Job that have failed, as its controller counts them.
type failures struct {
	n    int
	last time.Time
	pods map[types.UID]bool // that there were; true: it has failed
}

// The Job controller's pauses.
const (
	firstBackoff = 10 * time.Second
	mostBackoff  = 10 * time.Minute
)

// syncJob replaces pods that are gone or going, up to its parallelism. Each that fails makes it wait longer, and it
// takes a pod that is being deleted for one that has failed.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/job/backoff_utils.go
func (w *World) syncJob(job *batchv1.Job) {
	failed := w.failures[job.Name]
	if failed == nil {
		failed = &failures{pods: map[types.UID]bool{}}
		w.failures[job.Name] = failed
	}
	active, there := 0, map[types.UID]bool{}
	for _, pod := range memapi.List[*corev1.Pod](w.Server, memapi.Pods) {
		if !isOf(pod, job) {
			continue
		}
		there[pod.UID] = true
		if pod.DeletionTimestamp == nil && !memapi.Finished(pod) {
			failed.pods[pod.UID] = false
			active++
			continue
		}
		failed.count(pod.UID, finishedAt(pod))
	}
	for uid, counted := range failed.pods {
		if !counted && !there[uid] {
			failed.count(uid, w.Now().Time)
		}
	}
	missing := int(*job.Spec.Parallelism) - active
	if missing <= 0 {
		return
	}
	if wait := failed.wait() - w.Now().Sub(failed.last); wait > 0 {
		key := memapi.Key(job)
		w.after(wait, "backoff "+key, func() { w.lookAt(key) })
		return
	}
	for range missing {
		w.Put(memapi.Pods, owned(podOf(w.workloads[job.Name], w.name(job.Name)), "Job", job), byController)
	}
}

func (f *failures) count(pod types.UID, at time.Time) {
	if f.pods[pod] {
		return
	}
	f.pods[pod] = true
	f.n++
	if at.After(f.last) {
		f.last = at
	}
}

// wait is how long after the last failure there is another pod.
func (f *failures) wait() time.Duration {
	wait := time.Duration(0)
	for range f.n {
		wait = min(max(firstBackoff, wait*2), mostBackoff)
	}
	return wait
}

// finishedAt is when a pod has failed, as the Job controller sees it.
func finishedAt(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
			return c.LastTransitionTime.Time
		}
	}
	if pod.DeletionTimestamp != nil {
		return pod.DeletionTimestamp.Add(-time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second)
	}
	return pod.CreationTimestamp.Time
}
