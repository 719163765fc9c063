package sim

import (
	"slices"
	"time"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
)

// judgeSurge: as long as a pod can have its whole grace period, it leaves only when its Deployment has a new pod in its
// place. It's only judged where that is certain: nothing but its grace period drives the pod out, and nothing keeps it
// from being surged.
func (j *judge) judgeSurge(life *podLife, rec interruption.Record) {
	pod := life.pod
	of := j.w.workloadOf(pod)
	if of == nil || !j.surges(of) || !slices.Contains(j.w.Scene.Flags, "--drain-strategy=surge") || of.Budget != "" ||
		of.Broken > 0 || of.Volume || of.Gang || of.Tolerates || len(of.Annotations) > 0 || !memapi.Ready(pod) ||
		time.Since(life.ready) < j.onTheWay() {
		return
	}
	how, early := j.early(pod, j.deadlineOf(pod.Spec.NodeName, rec), time.Now())
	node := j.life(pod.Spec.NodeName)
	if !early || time.Since(node.later) < j.onTheWay() || len(rec.Hooks) > 0 && time.Since(node.changed) < j.onTheWay() {
		return
	}
	if life.surged.IsZero() {
		j.breaks(homeFirst, "pod %s was ended %s, and was not surged", memapi.Key(pod), how)
		return
	}
	if now := j.w.since(); j.twoLead() || j.w.disturbed(now-recovery, now) {
		return
	}
	first := life.surged // of those that are still there: new pods aren't made for one or another
	for _, other := range j.pods {
		if j.w.workloadOf(other.pod) == of && other.gone.IsZero() && !other.surged.IsZero() {
			first = interruption.Earlier(first, other.surged)
		}
	}
	since := first.Add(j.w.Ahead).Truncate(time.Second)
	unseen := max(recovery, j.onTheWay())
	for _, other := range j.pods {
		switch {
		case j.w.workloadOf(other.pod) != of || other.pod.CreationTimestamp.Time.Before(since):
		case other.gone.IsZero() && other.pod.DeletionTimestamp == nil && memapi.Ready(other.pod):
			return
		case !other.gone.IsZero() && time.Since(other.gone) < unseen || !other.asked.IsZero() && time.Since(other.asked) < unseen:
			return // the leader's watch was behind, or its eviction was already in flight
		}
	}
	j.breaks(homeFirst, "pod %s was ended %s, and no pod of its Deployment is Ready that has come since one was surged", memapi.Key(pod), how)
}
