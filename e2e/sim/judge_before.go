package sim

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// judgeBefore: a pod whose new home is on its way waits for that, as long as it can have its whole grace period. Only
// pods count that nothing but their grace period drives out: no budget has them leave in waves, no gang and no wish of
// their own.
func (j *judge) judgeBefore(pod *corev1.Pod, rec interruption.Record) {
	of := j.w.workloadOf(pod)
	if of == nil || len(of.Annotations) > 0 || of.Gang || of.Tolerates || of.Budget != "" || isSurged(pod) {
		return
	}
	asked := rec.Replacement
	if slices.Contains(j.w.Scene.Flags, "--drain-strategy=at-once") || asked != nil && !onItsWay(asked) || j.hung() || j.twoLead() {
		return
	}
	at, by := time.Now(), j.led
	j.w.after(j.onTheWay(), "its new home "+string(pod.UID), func() { // what the record says can follow the pod
		node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, pod.Spec.NodeName)
		if node == nil || j.hung() || j.led != by {
			return
		}
		now, has := recordOf(node)
		if !has || now.Event != rec.Event || !onItsWay(now.Replacement) || asked != nil && asked.Name != now.Replacement.Name {
			return
		}
		early := latestFor(pod, now.Deadline).Sub(at)
		if now.Deadline.IsZero() || early > j.slack() {
			j.breaks(homeFirst, "pod %s was ended %s before it had to be, and its new node, %s, is still %s",
				memapi.Key(pod), early.Round(time.Second/10), now.Replacement.Name, now.Replacement.State)
		}
	})
}

// onItsWay reports whether a replacement was requested that may still come.
func onItsWay(a *interruption.Replacement) bool {
	return a != nil && a.Name != "" && provisioner.Pending(a.State)
}
