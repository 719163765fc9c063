package sim

import (
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// groupRequest holds a request to Auto Scaling or EC2 to the invariants, as it is made.
func (j *judge) groupRequest(by string, form url.Values) {
	switch form.Get("Action") {
	case "DetachInstances":
		for _, id := range listed(form, "InstanceIds.member.") {
			j.judgeDetach(by, id, form)
		}
	case "CompleteLifecycleAction":
		j.judgeComplete(by, form.Get("InstanceId"))
	case "TerminateInstances":
		for _, id := range listed(form, "InstanceId.") {
			j.judgeTerminate(by, id)
		}
	}
}

// listed are the values of the parameters with that prefix.
func listed(form url.Values, prefix string) (list []string) {
	for name, values := range form {
		if strings.HasPrefix(name, prefix) {
			list = append(list, values...)
		}
	}
	return list
}

// justRecorded is how long a request based on the previous record can still be in flight.
const justRecorded = 2 * time.Second

// judgeDetach: only the instance of an interrupted node leaves its group, which stays as large as it is, and only once
// the node's record names the group: the next process has to know that it was us.
func (j *judge) judgeDetach(by, id string, form url.Values) {
	i := j.w.instances[id]
	if i == nil || !j.noticed(i.node) {
		j.breaks(notOurs, "%s detaches %s, about which nobody has announced anything", by, id)
		return
	}
	j.w.note("%s: detaches %s of %s", by, id, i.node)
	if form.Get("ShouldDecrementDesiredCapacity") != "false" {
		j.breaks(oneEach, "%s detaches %s, and no other is launched for it", by, i.node)
	}
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, i.node)
	if node != nil && !mayRelease(node) {
		j.breaks(notOurs, "%s detaches %s, whose rehearsal ends with it in service", by, i.node)
	}
	if node == nil || j.twoLead() {
		return // a moment ago, or another process has just written something else
	}
	rec, has := recordOf(node)
	fate := j.nodes[i.node]
	if has && time.Since(fate.recorded[rec.Kind]) < justRecorded || !has && time.Since(fate.restored) < justRecorded {
		return // the record changed with the request in flight: EC2 ended a rehearsal, say, or an operator cancelled it
	}
	if !has || rec.Replacement == nil || rec.Replacement.Name == "" {
		j.breaks(recordsTrue, "%s detaches %s, and its record is %s", by, i.node, summary(rec, has))
	}
}

// recognizedBy is how long it can take until an instance that another waits for is known to be Ready.
const recognizedBy = 40 * time.Second

// judgeAhead: an instance that has left its group does not wait for another once the one that the group launched ahead
// for it is Ready. It knows only groups that nobody makes larger or smaller.
func (j *judge) judgeAhead(i *instance) {
	w := j.w
	if !slices.Contains(w.Scene.Flags, "--provisioner=asg") || w.Scene.Karpenter.Provisions || len(w.Scene.ScaleIns) > 0 {
		return
	}
	old := w.instances[w.launchedFor[i.id]]
	here, there := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, i.node), memapi.Get[*corev1.Node](w.Server, memapi.Nodes, old.node)
	fate := j.nodes[old.node]
	if here == nil || there == nil || !i.runs || !isReady(here) || here.Spec.Unschedulable || fate == nil || len(fate.progress) == 0 {
		return
	}
	for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
		if rec, has := recordOf(node); has && rec.Replacement != nil && rec.Replacement.Name == i.id {
			return // it is another's
		}
	}
	rec, has := recordOf(there)
	if !has || rec.Phase.Over() || rec.Replacement == nil || rec.Replacement.State != provisioner.StateLaunched {
		w.after(recognizedBy, "recognize "+i.id, func() { j.judgeAhead(i) })
		return
	}
	if left := recognizedBy - time.Since(fate.progress[len(fate.progress)-1]); left > 0 {
		w.after(left, "recognize "+i.id, func() { j.judgeAhead(i) })
		return
	}
	if now := w.since(); !w.disturbed(now-recognizedBy-recovery, now) {
		j.breaks(hasRoom, "node %s waits for a replacement, and %s is Ready, which its group has launched for it", old.node, i.node)
	}
}

// judgeTerminate: EC2 ends those that it has given a notice for. We end those of which it has said that it might, once
// they are drained.
func (j *judge) judgeTerminate(by, id string) {
	j.terminated[id] = true
	i := j.w.instances[id]
	if i == nil || !j.noticed(i.node) {
		j.breaks(notOurs, "%s terminates %s, about which nobody has announced anything", by, id)
		return
	}
	j.w.note("%s: terminates %s of %s", by, id, i.node)
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, i.node)
	if node == nil {
		return
	}
	rec, has := recordOf(node)
	released := rec.Rehearsed() && rec.Release
	kinds := j.life(i.node).recorded
	before := func(kind interruption.Kind) bool { // a notice has come since, which the watch needn't have shown yet
		return !kinds[kind].IsZero() && j.unseen(kinds[rec.Kind])
	}
	ours := released || rec.Kind == interruption.RebalanceRecommendation || rec.Kind == interruption.ScheduledEvent ||
		before(interruption.RebalanceRecommendation) || before(interruption.ScheduledEvent)
	if !has || !ours || !mayRelease(node) {
		j.breaks(notOurs, "%s terminates %s, and its record is %s", by, i.node, summary(rec, has))
	}
	if end := rec.DrainEnd(); released && (rec.Phase == interruption.DeadlineReached || !end.IsZero() && !time.Now().Before(end)) {
		return // EC2 would have terminated it by then, even if the record does not show that yet
	}
	for _, pod := range j.w.podsOn(i.node) {
		if life := j.pods[pod.UID]; hasToMove(pod) && life != nil && time.Since(life.bound) > justBound+j.behind() && !j.cameBack(pod) {
			j.breaks(graceKept, "%s terminates %s, and pod %s is there", by, i.node, pod.Name)
		}
	}
}
