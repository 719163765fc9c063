package sim

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// judgeBefore: a pod whose new home is on its way waits for that, as long as it can have its whole grace period. Only
// pods count that nothing but their grace period drives out: no budget has them leave in waves, no gang and no wish of
// their own. Until just now there may have been an earlier deadline, or no new node on its way, as the pods fit on other
// nodes. And if a write fails, or the watch is behind, the record doesn't yet say what the daemon knows.
func (j *judge) judgeBefore(pod *corev1.Pod, rec interruption.Record) {
	of := j.w.workloadOf(pod)
	if of == nil || len(of.Annotations) > 0 || of.Gang || of.Tolerates || of.Budget != "" || isSurged(pod) {
		return
	}
	asked, life := rec.Replacement, j.life(pod.Spec.NodeName)
	if slices.Contains(j.w.Scene.Flags, "--replacement=when-needed") && (asked == nil || time.Since(life.asked) < j.onTheWay()) ||
		time.Since(life.later) < j.onTheWay() {
		return
	}
	if slices.Contains(j.w.Scene.Flags, "--drain-strategy=at-once") || asked != nil && !onItsWay(asked) || j.hung() || j.twoLead() {
		return
	}
	at, leads := time.Now(), j.led
	j.w.after(2*j.onTheWay(), "its new home "+string(pod.UID), func() { // what the record says can follow the pod
		node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, pod.Spec.NodeName)
		if node == nil || j.hung() || j.led != leads || asked == nil && !life.without.Before(at) {
			return
		}
		now, has := recordOf(node)
		if !has || now.Event != rec.Event || !onItsWay(now.Replacement) || asked != nil && asked.Name != now.Replacement.Name {
			return
		}
		if j.readyBy(now.Replacement.Name, at) { // a leader that has lost its lease since couldn't write that
			return
		}
		by := interruption.Earlier(rec.Deadline, j.deadlineOf(node.Name, now)) // an earlier one may have passed since
		if how, early := j.early(pod, by, at); early {
			j.breaks(homeFirst, "pod %s was ended %s, and its new node, %s, is still %s", memapi.Key(pod), how, now.Replacement.Name, now.Replacement.State)
		}
	})
}

// early reports whether the pod could have stayed longer and still had its whole grace period, and says how much longer.
func (j *judge) early(pod *corev1.Pod, deadline, at time.Time) (how string, early bool) {
	if deadline.IsZero() {
		return "without a deadline", true
	}
	by := latestFor(pod, deadline).Sub(at)
	return by.Round(time.Second/10).String() + " before it had to be", by > j.slack()
}

// onItsWay reports whether a replacement was requested that may still come.
func onItsWay(a *interruption.Replacement) bool {
	return a != nil && a.Name != "" && provisioner.Pending(a.State)
}

// readyBy reports whether the Node has been Ready since that time or longer.
func (j *judge) readyBy(name string, at time.Time) bool {
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, name)
	if node == nil {
		return false
	}
	since, ready := nodes.ReadySince(node)
	return ready && !since.After(at)
}
