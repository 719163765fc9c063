package sim

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"spot-handler/e2e/asgemu"
	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
)

// budgetChanged notes until when a budget let nobody go: then no eviction need be asked for.
func (j *judge) budgetChanged(c memapi.Change) {
	before, _ := c.Before.(*policyv1.PodDisruptionBudget)
	after, _ := c.After.(*policyv1.PodDisruptionBudget)
	if before != nil && before.Status.DisruptionsAllowed == 0 || after != nil && after.Status.DisruptionsAllowed == 0 {
		j.closed[c.Key] = time.Now()
	}
}

// closedUntil is when a budget of the pod has last let nobody go; zero if it always has let some.
func (j *judge) closedUntil(pod *corev1.Pod) (until time.Time) {
	for _, budget := range j.w.BudgetsOf(pod) {
		if budget.Status.DisruptionsAllowed == 0 {
			return time.Now()
		}
		until = interruption.Later(until, j.closed[memapi.Key(budget)])
	}
	return until
}

// judgeTime looks whether there was time enough.
func (j *judge) judgeTime(life *podLife, fate *nodeLife) {
	pod, w := life.pod, j.w
	recorded := fate.recorded[interruption.SpotInterruption]
	if fate.loss.Hibernates && !recorded.IsZero() && fate.canceled.IsZero() {
		if life.bound.Add(justBound).After(recorded) {
			return // it might not have been seen when the node was found empty
		}
		able := interruption.Later(recorded, life.bound)
		j.judgeLate(life, able, interruption.Later(life.refused, j.closedUntil(pod)).After(able))
		return
	}
	if recorded.IsZero() || fate.loss.Lead == 0 || !fate.canceled.IsZero() {
		j.judgeHookTime(life, fate)
		return // nobody knew in time; recommendations have no deadline
	}
	if !fate.over.IsZero() && fate.over.Before(recorded) {
		return // the drain for a scheduled event was over, and so was its time
	}
	if i := w.instanceOf(pod.Spec.NodeName); i != nil && !i.taken.IsZero() && i.taken.Before(w.began.Add(fate.loss.At+fate.loss.Lead-margin)) {
		return // EC2 was early
	}
	deadline := w.began.Add(fate.loss.At + fate.loss.Lead)
	// The earlier deadline counts only if it was announced in time.
	if fate.loss.Renews && w.began.Add(fate.loss.At+fate.loss.Delay+fate.loss.Again+recovery).Before(latestFor(pod, deadline.Add(-renewedBy))) {
		deadline = deadline.Add(-renewedBy)
	}
	j.judgeUntil(life, recorded, deadline)
}

// judgeHookTime does so where a group has waited for the instance, and nothing else was said about it.
func (j *judge) judgeHookTime(life *podLife, fate *nodeLife) {
	i := j.w.instanceOf(life.pod.Spec.NodeName)
	if i == nil || j.hooks[i.id] == nil || len(fate.recorded) != 1 || !fate.canceled.IsZero() || !fate.rehearsed.IsZero() {
		return
	}
	if !i.runs && j.hookOf(i.id, asgemu.TerminateAt) != nil {
		return // EC2 has taken it, and said nothing
	}
	// The group can give up waiting while the record can't be written.
	if recorded := fate.recorded[interruption.InstanceTerminating]; !recorded.IsZero() && !life.gone.Before(recorded.Add(recovery)) {
		j.judgeUntil(life, recorded, j.hookUntil(j.hooks[i.id]))
	}
}

// latestFor is the latest time to ask the pod to end, so that its grace period and a margin fit before the deadline.
func latestFor(pod *corev1.Pod, deadline time.Time) time.Time {
	return deadline.Add(-margin - time.Duration(memapi.GraceOf(pod))*time.Second)
}

// judgeUntil does so where the node's end was recorded then, and expected at that time.
func (j *judge) judgeUntil(life *podLife, recorded, deadline time.Time) {
	pod, w := life.pod, j.w
	latest := latestFor(pod, deadline)
	able := interruption.Later(recorded, life.bound)
	from, to := able.Sub(w.began), latest.Sub(w.began)
	held := latest.Sub(interruption.Later(interruption.Later(life.refused, j.crowded), j.closedUntil(pod))) < recovery ||
		w.admitsNothing(from, to)
	switch {
	case seemsPutHere(pod, recorded, deadline):
		return
	case able.Add(recovery).After(latest): // there was no time to lose
		j.judgeLate(life, able, held)
		return
	case w.disturbed(from, to+2*time.Second):
		return
	case held && j.wavesFit(pod, able, latest):
	case held && (!j.deletesBlocked(pod) || interruption.Earlier(life.gone, deadline).Sub(latest) < 2*recovery):
		return // nobody let it go
	case held && !life.asked.IsZero():
		return // it was deleted past what held it
	}
	what := "was never asked to end"
	if !life.asked.IsZero() {
		what = fmt.Sprintf("was asked to end at %.3f with %d s by %s", life.asked.Sub(w.began).Seconds(), life.grace, life.by)
		if late := life.asked.Sub(latest) - j.slack(); late < 0 || j.oneByOne(pod, late) > late {
			return
		}
	}
	j.breaks(graceKept, "pod %s on %s, grace %d s, could leave from %.3f to %.3f, and %s",
		memapi.Key(pod), pod.Spec.NodeName, memapi.GraceOf(pod), from.Seconds(), to.Seconds(), what)
}

// seemsPutHere reports whether the pod seems to have been made for this node, past the scheduler, by what the API
// server's clock says: with little time left, that is so for one that was made later than halfway to the deadline.
func seemsPutHere(pod *corev1.Pod, recorded, deadline time.Time) bool {
	halfway := recorded.Add(max(0, deadline.Sub(recorded)/2)).Truncate(time.Second)
	return deadline.Sub(recorded) < 2*schedulerLag && !pod.CreationTimestamp.Time.Before(halfway)
}

// schedulerLag is for how long after the cordon a pod counts as the scheduler's.
const schedulerLag = 10 * time.Second

// evictionTakes is how long the API server takes at most for each of many evictions under one budget.
const evictionTakes = 70 * time.Millisecond

// oneByOne is how late the last pod of the workload can be, as a budget is charged for one pod after the other.
// It stops counting once that exceeds most.
func (j *judge) oneByOne(pod *corev1.Pod, most time.Duration) (late time.Duration) {
	for _, life := range j.pods {
		if late > most {
			break
		}
		if life.pod.Labels[appLabel] == pod.Labels[appLabel] && life.pod.Spec.NodeName != "" && j.noticed(life.pod.Spec.NodeName) {
			late += evictionTakes
		}
	}
	return late
}

// judgeLate: if it was too late for a whole grace period, the pod is asked to end as soon as possible.
func (j *judge) judgeLate(life *podLife, able time.Time, held bool) {
	// One that came with the cordon, or in the 10 s after it, might be put back by its controller: it is evicted
	// when that is known.
	if comes := life.pod.CreationTimestamp.Add(12*time.Second - j.w.Ahead); able.Before(comes) {
		able = comes
	}
	until, what := life.gone, "was never asked to end"
	if !life.asked.IsZero() {
		until, what = life.asked.Add(-j.slack()), "was asked to end only then"
		until = until.Add(-j.oneByOne(life.pod, until.Sub(able)))
	}
	if held || until.Sub(able) < recovery || j.w.disturbed(able.Sub(j.w.began), until.Sub(j.w.began)) {
		return
	}
	j.breaks(graceKept, "pod %s on %s could leave from %.3f to %.3f, if not with its whole grace period, and %s",
		memapi.Key(life.pod), life.pod.Spec.NodeName, able.Sub(j.w.began).Seconds(), until.Sub(j.w.began).Seconds(), what)
}
