package sim

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/e2e/sim/memapi"
)

// podChanged has the scheduler, the kubelet and the pod's controller look at it.
func (w *World) podChanged(c memapi.Change) {
	before, _ := c.Before.(*corev1.Pod)
	after, _ := c.After.(*corev1.Pod)
	pod := after
	if after == nil {
		pod = before
	}
	w.lookAtOwners(pod)
	for _, budget := range w.BudgetsOf(pod) {
		w.lookAtBudget(memapi.Key(budget))
	}
	switch {
	case after == nil:
		w.detach(pod)
		w.lookForRoom()
	case after.DeletionTimestamp != nil && (before == nil || !before.DeletionTimestamp.Equal(after.DeletionTimestamp)):
		w.stopPod(after)
	case after.Spec.NodeName == "":
		w.lookForRoom()
	case after.Status.Phase == corev1.PodPending && (before == nil || before.Spec.NodeName == ""):
		w.startPod(after)
	}
}

func (w *World) lookAtOwners(pod *corev1.Pod) {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		w.lookAt(pod.Namespace + "/" + owner.Name)
		return
	}
	if of := w.workloadOf(pod); of != nil && of.Kind == "Deployment" { // one that might be taken in
		w.lookAt(pod.Namespace + "/" + of.Name + "-" + hashOf(of))
	}
}

// change changes a pod of that UID, if it is still there.
func (w *World) changePod(pod *corev1.Pod, by string, how func(*corev1.Pod)) bool {
	now := memapi.Get[*corev1.Pod](w.Server, memapi.Pods, memapi.Key(pod))
	if now == nil || now.UID != pod.UID {
		return false
	}
	changed := now.DeepCopy()
	how(changed)
	w.Put(memapi.Pods, changed, by)
	return true
}

func (w *World) attach(pod *corev1.Pod) {
	volume := "pv-" + pod.Name
	w.Put(memapi.Attachments, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va-" + pod.Name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "ebs.csi.aws.com",
			NodeName: pod.Spec.NodeName,
			Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}, byController)
}

// detach takes the volume of a pod off its node, if that has any.
func (w *World) detach(pod *corev1.Pod) {
	if len(pod.Spec.Volumes) == 0 || pod.Spec.NodeName == "" {
		return
	}
	w.after(w.draw().Between(time.Second, 12*time.Second, pod.Name, "detach"), "detach "+string(pod.UID), func() {
		at := memapi.Get[attachment](w.Server, memapi.Attachments, "va-"+pod.Name)
		if at != nil && at.Spec.NodeName == pod.Spec.NodeName {
			w.Remove(memapi.Attachments, at.Name, byController)
			w.lookForRoom()
		}
	})
}

func (w *World) alive(node string) bool {
	i := w.instanceOf(node)
	return i != nil && i.runs
}

// startPod is the kubelet's part of a pod's beginning.
func (w *World) startPod(pod *corev1.Pod) {
	if isPlaceholder(pod) {
		w.startPlaceholder(pod)
		return
	}
	of := w.workloadOf(pod)
	if len(pod.Spec.Volumes) > 0 {
		w.attach(pod)
	}
	w.after(w.draw().Between(100*time.Millisecond, 800*time.Millisecond, pod.Name, "starts"), "start "+string(pod.UID), func() {
		if !w.alive(pod.Spec.NodeName) {
			return
		}
		w.changePod(pod, byKubelet, func(p *corev1.Pod) {
			if p.DeletionTimestamp == nil {
				now := w.Now()
				p.Status.Phase, p.Status.StartTime, p.Status.PodIP = corev1.PodRunning, &now, "10.1.0.2"
			}
		})
	})
	w.after(time.Second+of.Start, "ready "+string(pod.UID), func() {
		now := memapi.Get[*corev1.Pod](w.Server, memapi.Pods, memapi.Key(pod))
		if now != nil && now.UID == pod.UID && w.alive(pod.Spec.NodeName) && now.DeletionTimestamp == nil {
			w.setPodReady(now, true)
		}
	})
}

func (w *World) setPodReady(pod *corev1.Pod, ready bool) {
	w.changePod(pod, byKubelet, func(p *corev1.Pod) {
		status := corev1.ConditionFalse
		if ready {
			status = corev1.ConditionTrue
		}
		p.Status.Conditions = append(
			slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady }),
			corev1.PodCondition{Type: corev1.PodReady, Status: status, LastTransitionTime: w.Now()})
	})
}

// stopPod is the kubelet's part of a pod's end: it takes as long as the pod likes, and no longer than its grace period.
func (w *World) stopPod(pod *corev1.Pod) {
	if isPlaceholder(pod) {
		w.Remove(memapi.Pods, memapi.Key(pod), byKubelet)
		return
	}
	of := w.workloadOf(pod)
	grace := time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	takes := 30*time.Millisecond + min(grace, w.Scene.StopsAfter(of, pod.Name))
	w.after(takes, "stopped "+string(pod.UID), func() {
		now := memapi.Get[*corev1.Pod](w.Server, memapi.Pods, memapi.Key(pod))
		if now != nil && now.UID == pod.UID && w.alive(pod.Spec.NodeName) {
			w.judge.stopped(now)
			w.Remove(memapi.Pods, memapi.Key(pod), byKubelet)
		}
	})
}

func (w *World) budgetKeys() (keys []string) {
	for _, budget := range memapi.List[*policyv1.PodDisruptionBudget](w.Server, memapi.Budgets) {
		keys = append(keys, memapi.Key(budget))
	}
	return keys
}

// lookAtBudget has the disruption controller count again in a moment.
func (w *World) lookAtBudget(key string) {
	w.after(w.draw().Between(5*time.Millisecond, 100*time.Millisecond, key, "disruption"), "budget "+key, func() { w.syncBudget(key) })
}

// grantStands is how long the disruption controller waits for a pod whose eviction was granted.
const grantStands = 2 * time.Minute

// syncBudget is the disruption controller.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/disruption/disruption.go
func (w *World) syncBudget(key string) {
	budget := memapi.Get[*policyv1.PodDisruptionBudget](w.Server, memapi.Budgets, key)
	if budget == nil {
		return
	}
	now := w.Now().Time
	var covered []*corev1.Pod
	for _, pod := range memapi.List[*corev1.Pod](w.Server, memapi.Pods) {
		if pod.Namespace == budget.Namespace && memapi.Covers(budget, pod) && !memapi.Finished(pod) {
			covered = append(covered, pod)
		}
	}
	status := policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptedPods: map[string]metav1.Time{}}
	for _, pod := range covered {
		at, charged := budget.Status.DisruptedPods[pod.Name]
		if pod.DeletionTimestamp != nil {
			continue
		}
		if charged && now.Before(at.Add(grantStands)) {
			status.DisruptedPods[pod.Name] = at
			w.after(at.Add(grantStands).Sub(now)+time.Second, "recheck "+key, func() { w.syncBudget(key) })
			continue
		}
		if memapi.Ready(pod) {
			status.CurrentHealthy++
		}
	}
	status.ExpectedPods, status.DesiredHealthy = w.expected(budget, covered)
	if allowed := status.CurrentHealthy - status.DesiredHealthy; allowed > 0 && status.ExpectedPods > 0 {
		status.DisruptionsAllowed = allowed
	}
	if len(status.DisruptedPods) == 0 {
		status.DisruptedPods = nil
	}
	if equality.Semantic.DeepEqual(budget.Status, status) {
		return
	}
	changed := budget.DeepCopy()
	changed.Status = status
	w.Put(memapi.Budgets, changed, byDisruption)
}

// expected is how many pods there should be, and how many have to be healthy.
func (w *World) expected(budget *policyv1.PodDisruptionBudget, covered []*corev1.Pod) (expected, desired int32) {
	of := w.workloads[budget.Name]
	scale := int32(0)
	if slices.ContainsFunc(covered, func(pod *corev1.Pod) bool { return metav1.GetControllerOf(pod) != nil }) {
		scale = int32(of.Replicas)
	}
	if value := budget.Spec.MaxUnavailable; value != nil {
		n, _ := intstr.GetScaledValueFromIntOrPercent(value, int(scale), true)
		return scale, max(0, scale-int32(n))
	}
	if budget.Spec.MinAvailable.Type == intstr.Int {
		return int32(len(covered)), budget.Spec.MinAvailable.IntVal
	}
	n, _ := intstr.GetScaledValueFromIntOrPercent(budget.Spec.MinAvailable, int(scale), true)
	return scale, int32(n)
}
