package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// rules hold a pod back or drive it out, in this order.
var rules = []func(*planner, *corev1.Pod, *Decision) (Action, string){
	isTerminating,
	isNoLongerNeeded,
	isPutHere,
	isPastLatest,
	isDue,
	isLastDaemon,
	isNotToBeSurged,
	findsNoPlace,
	isNotWorthIt,
	isOfUnknownNamespace,
	isSelfAndNotLast,
	isAtRiskOnly,
	isPinned,
	toleratesEverything,
	leavesAsPreferred,
	isSurged,
	isTakenBack,
	isToBeSurged,
	isHeld,
	hasNewHome,
}

func isTerminating(_ *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	return when(pod.DeletionTimestamp != nil, Wait, "terminating")
}

// when decides if that holds, and else leaves it to the next rule.
func when(holds bool, action Action, reason string) (Action, string) {
	if !holds {
		return "", ""
	}
	return action, reason
}

// isPutHere: a pod that came just after the cordon is either the scheduler's last or one that its
// controller puts back on this very node. It is evicted as late as is safe. One that came too late for
// that, and every one without a deadline, is evicted when what comes back is known from that, once.
func isPutHere(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !p.putHere(pod) {
		return "", ""
	}
	hold := p.now.Before(d.Latest)
	if !hold && !pod.CreationTimestamp.Time.Before(d.Latest) {
		d.Until, hold = p.cordonSeen(), p.now.Before(p.cordonSeen())
	}
	return when(hold, Hold, "has come since the node was marked, and might come again")
}

// isPastLatest: there is no more time to wait for anything.
func isPastLatest(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case d.Latest.IsZero() || p.now.Before(d.Latest):
		return "", ""
	case p.Refused[pod.UID] && d.DeletedIfRefused:
		return Force, "eviction deadline has come, and the eviction is still refused"
	}
	return Evict, "eviction deadline has come"
}

// isDue: its gang leaves, or the pods under one budget leave in waves, and it is this pod's turn.
func isDue(p *planner, _ *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case d.At.IsZero() || p.now.Before(d.At):
		return "", ""
	case d.At.Equal(d.withGang):
		return Evict, "a pod of its gang has to leave now"
	}
	return Evict, "its PDB lets pods go only in waves, and its wave has come"
}

// isLastDaemon: a DaemonSet's pod that asks for it leaves after all that have another place to go to. It does
// so once: what its DaemonSet puts in its place stays.
func isLastDaemon(p *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	switch {
	case !IsDaemon(pod):
		return "", ""
	case slices.ContainsFunc(p.Pods, func(other *corev1.Pod) bool {
		return p.notOurs(other) == "" && !IsDaemon(other) && !p.isSelf(other)
	}):
		return Hold, WhenAnnotation + "=" + string(WhenLast) + ": goes after all other pods"
	}
	return Evict, "all other pods have gone"
}

// isSelfAndNotLast: once this process's own pod goes, somebody else has to take over.
func isSelfAndNotLast(p *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	return when(p.isSelf(pod) && p.others(), Hold, "spot-handler's own pod: goes last")
}

// isPinned: what is said of this very pod about interruptions overrides what holds for any
// disruption.
func isPinned(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	reason, until := pinned(pod, p.now)
	if reason == "" || p.Deadline.IsZero() || d.preference.own {
		return "", ""
	}
	d.Until = until
	return Hold, reason
}

// toleratesEverything: a pod that may be put back on this very node is evicted once, and as
// late as is safe, so it does not come back only to be ended with the node.
func toleratesEverything(p *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	return when(!p.Deadline.IsZero() && ToleratesAll(pod, p.Taint), Hold, everyTaint)
}

const everyTaint = "tolerates every taint, and might be put back on this node"

// isOfUnknownNamespace: until it is known what the namespace asks for, the pod might have to stay to
// its eviction deadline, or for good if it has none.
func isOfUnknownNamespace(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	_, known := p.Namespaces[pod.Namespace]
	return when(!known && p.Namespaces != nil && !d.preference.own, Hold, "what its namespace asks for is being looked up")
}

// leavesAsPreferred: the pod has its own idea of when. One that is to be held is held like any
// other that is not surged. One that was surged before it said so keeps its place in line.
func leavesAsPreferred(p *planner, _ *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case d.preference.When == WhenNow:
		return Evict, d.preference.reason()
	case d.preference.When == WhenLast && !p.Deadline.IsZero():
		return Hold, d.preference.reason()
	}
	return "", ""
}

func isHeld(p *planner, _ *corev1.Pod, d *Decision) (Action, string) {
	waits := p.Policy.Strategy != StrategyAtOnce || d.preference.When == WhenHold
	return when(waits && p.Capacity == PendingCapacity, Hold, "waits for the replacement")
}

func hasNewHome(p *planner, _ *corev1.Pod, _ *Decision) (Action, string) {
	return when(p.Capacity == ReadyCapacity, Evict, "replacement is ready")
}

// BlockedAnnotation on a pod or a namespace overrides --blocked-pods.
const BlockedAnnotation = "spot-handler/blocked-pods"

// blocked is the policy for a pod: from its own annotation, its namespace or the flag. No
// pod is deleted before it is known whether its namespace forbids it.
func (p *planner) blocked(pod *corev1.Pod) BlockedPolicy {
	if own := BlockedPolicy(pod.Annotations[BlockedAnnotation]); slices.Contains(BlockedPolicies(), own) {
		return own
	}
	theirs, known := p.Namespaces[pod.Namespace]
	switch {
	case !known:
		return Leave
	case slices.Contains(BlockedPolicies(), theirs.Blocked):
		return theirs.Blocked
	}
	return p.Policy.Blocked
}

// A node that is only at risk, as after a rebalance recommendation, has no deadline. Nothing is
// done to its pods before their new home is there, and nothing that their owners would not have.

// isNotWorthIt: a node that is only at risk is no reason to override what the pod's owner asks
// for. A surged pod has been on its way since before that was asked.
func isNotWorthIt(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !p.Deadline.IsZero() || IsSurged(pod) {
		return "", ""
	}
	reason, until := pinned(pod, p.now)
	if d.preference.When == WhenNow && p.Gangs[gangOf(pod)].Asked { // its gang overrides that
		reason, until = "", time.Time{}
	}
	if reason == "" && d.preference.When == WhenLast {
		reason = d.preference.reason() // without a deadline there is no last moment
	}
	if reason == "" {
		reason = p.forbidden(pod)
	}
	if reason == "" {
		return "", ""
	}
	d.Until, d.Stays = until, true
	return Hold, "no deadline: " + reason
}

// isAtRiskOnly: without a deadline there is no hurry.
func isAtRiskOnly(p *planner, _ *corev1.Pod, _ *Decision) (Action, string) {
	return when(p.Deadline.IsZero() && p.Capacity != ReadyCapacity, Hold, "no deadline: waits for a replacement")
}
