package sim

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// judgeUse: pods that select a zone can run wherever the machine of a replacement can be. It knows only pods that go
// with any node, and that have been there for a while.
func (j *judge) judgeUse(claim custom, i *instance) {
	if slices.Contains(j.w.Scene.Flags, "--replacement=when-needed") || claim.GetLabels()["karpenter.sh/nodepool"] != PoolFallback {
		return // some have room elsewhere, or can't be on a spot instance, as what was lost lately is left out
	}
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, i.node)
	if node == nil {
		return
	}
	rec, has := recordOf(node)
	if !has || !rec.Kind.Certain() || time.Since(j.life(i.node).recorded[rec.Kind]) < j.onTheWay() {
		return // pods can stay, or could a moment ago
	}
	for _, pod := range j.w.podsOn(i.node) {
		of, life := j.w.workloadOf(pod), j.pods[pod.UID]
		if of == nil || of.Zone == "" || of.Gang || of.Tolerates || len(of.Annotations) > 0 || !hasToMove(pod) || pod.DeletionTimestamp != nil || isSurged(pod) {
			continue
		}
		if life == nil || time.Since(life.bound) < justBound || slices.ContainsFunc(j.w.BudgetsOf(pod), neverAllows) {
			continue // or might not be seen yet, or stays where the end of its node is not certain
		}
		for _, zone := range zonesFor(claim) {
			if zone != of.Zone {
				j.breaks(isOfUse, "NodeClaim %s for %s can come to %s, and pod %s selects %s by %s",
					claim.GetName(), i.node, zone, pod.Name, of.Zone, of.ZoneBy)
			}
		}
	}
}

// neverAllows reports whether the budget lets no pod go, even if all are healthy.
func neverAllows(budget *policyv1.PodDisruptionBudget) bool {
	return budget.Status.ExpectedPods <= budget.Status.DesiredHealthy
}

// judgePaid: a machine that is paid for is used before another is paid for.
func (j *judge) judgePaid(claim custom, i *instance) {
	if claim.GetLabels()[karpenter.ReplacesLabel] != "" && !i.reserved {
		j.breaks(paidFirst, "NodeClaim %s is on demand, and a reserved machine is free", claim.GetName())
	}
}

// judgeLimit holds what we have asked for to the limit of its pool. The daemon knows only what Karpenter asked for a
// while ago. About the types it knows only that one that fits has less than twice what is asked for, or one processor.
func (j *judge) judgeLimit(claim custom, i *instance) {
	limit := j.w.Scene.Karpenter.Limit
	if claim.GetLabels()[karpenter.ReplacesLabel] == "" || limit == 0 || i.pool != PoolFallback || j.twoLead() {
		return
	}
	used, ours := i.cpu, int64(1)
	for _, other := range memapi.List[custom](j.w.Server, memapi.NodeClaims) {
		of := j.w.instances[instanceID(other.GetName())]
		switch {
		case other.GetLabels()["karpenter.sh/nodepool"] != PoolFallback || other.GetName() == claim.GetName():
		case other.GetLabels()[karpenter.ReplacesLabel] != "":
			ours++
			fallthrough
		case j.w.Now().Sub(other.GetCreationTimestamp().Time) > knownBy:
			if of != nil {
				used += of.cpu
			} else {
				used += cpuAsked(other)
			}
		}
	}
	if used > limit+ours*1000 {
		j.breaks(limitsKept, "NodeClaim %s brings %s to %dm of %dm", claim.GetName(), i.pool, used, limit)
	}
}

// knownBy is when we know at the latest what there is in a pool.
const knownBy = 30 * time.Second

// judgeRoom: if there is no replacement, and none was tried, the pool has no room for it.
func (j *judge) judgeRoom(node *corev1.Node, was, rec interruption.Record) {
	i, limit := j.w.instanceOf(node.Name), j.w.Scene.Karpenter.Limit
	failed := rec.Replacement != nil && rec.Replacement.State == provisioner.StateFailed
	before := was.Replacement != nil && was.Replacement.State == provisioner.StateFailed
	if !failed || before || i == nil || limit == 0 || i.pool != PoolSpot || rec.Kind != interruption.SpotInterruption {
		return
	}
	if rec.Replacement.Backend != provisioner.Karpenter {
		return // the limit is of its NodePool
	}
	need := j.needOf(node.Name)
	if len(j.replaced[i.id]) > 0 {
		return
	}
	if time.Since(j.dropped) < knownBy || len(j.w.faulty.spans) > 0 || j.w.Scene.Rates != (Rates{}) {
		return
	}
	// Others that are lost at the same time are given theirs first.
	at := slices.IndexFunc(sizes, func(size int64) bool { return size >= need })
	left := limit - j.w.usedOf(PoolFallback)
	if at >= 0 && sizes[at] <= left {
		j.breaks(hasRoom, "node %s has none, its pods need %dm, and %dm are left: %s", node.Name, need, left, rec.Replacement.Reason)
	}
}

// answeredAgain is how long the daemon repeats that a pool has no room before it asks again.
const answeredAgain = 6 * time.Second

// needOf is the most that the node's pods needed at any recent report of no room.
func (j *judge) needOf(node string) (most int64) {
	fate, now := j.life(node), need{at: time.Now()}
	for _, pod := range j.w.podsOn(node) {
		if !memapi.Finished(pod) {
			now.cpu += cpuOf(pod)
		}
	}
	fate.needs = append(fate.needs, now)
	for _, before := range fate.needs {
		if time.Since(before.at) < answeredAgain {
			most = max(most, before.cpu)
		}
	}
	return most
}

// cameBack reports whether the pod came to its interrupted node after that was marked: it tolerates the mark, and can
// come again if it's evicted.
func (j *judge) cameBack(pod *corev1.Pod) bool {
	life, fate := j.pods[pod.UID], j.nodes[pod.Spec.NodeName]
	if life == nil || fate == nil || !toleratesAll(pod) {
		return false
	}
	first := fate.rehearsed
	if node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, pod.Spec.NodeName); node != nil {
		if rec, has := recordOf(node); has { // it can take seconds to be written
			first = interruption.Earlier(first, rec.Since())
		}
	}
	for _, at := range fate.recorded {
		first = interruption.Earlier(first, at)
	}
	// Where the API server's clock is ahead, a pod seems to have come that was there a moment before.
	return !first.IsZero() && (life.bound.After(first) || pod.CreationTimestamp.After(first))
}

// judgeBack: a pod that came although everything says that the node is interrupted is left there. A new leader has not
// seen it come, and knows only its creation time, in whole seconds.
func (j *judge) judgeBack(life *podLife, node *corev1.Node) {
	rec, has := recordOf(node)
	if !has || !toleratesAll(life.pod) || metav1.GetControllerOf(life.pod) == nil || j.twoLead() {
		return
	}
	told := life.pod.CreationTimestamp.After(rec.Since()) || len(j.w.faulty.spans) == 0 && j.w.Scene.Rates == (Rates{})
	if told && life.bound.After(rec.Since()) {
		j.breaks(noReason, "pod %s has come to %s since that was marked, tolerates that, and is ended again", memapi.Key(life.pod), node.Name)
	}
}

// judgeDeadline: the record says when EC2 interrupts the instance. What EC2 had scheduled earlier, and did not do in
// time, no longer matters.
func (j *judge) judgeDeadline(node *corev1.Node, rec interruption.Record, fate *nodeLife) {
	l := fate.loss
	if !fate.rehearsed.IsZero() {
		return // a rehearsal has a deadline of its own
	}
	if rec.Kind != interruption.SpotInterruption || rec.Rehearsed() || l.Kind != rec.Kind || l.Lead == 0 || rec.Deadline.IsZero() || len(rec.Hooks) > 0 {
		return
	}
	acts := j.w.began.Add(l.At + l.Lead)
	if !rec.Deadline.Before(acts.Add(-5 * time.Second)) {
		return
	}
	for _, other := range j.w.Scene.Losses {
		if at := other.At + other.Lead; other.Node == l.Node && other.At < l.At && at > l.At && at < l.At+l.Lead {
			return // what it had said before comes sooner
		}
	}
	j.breaks(recordsTrue, "node %s is to end at %.3f, and its record says %.3f",
		node.Name, acts.Sub(j.w.began).Seconds(), rec.Deadline.Sub(j.w.began).Seconds())
}
