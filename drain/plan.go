package drain

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// Plan decides about every pod of a node, exactly once, earliest start first. It has no
// side effects and reads no clock.
func Plan(now time.Time, s Situation) []Decision {
	if s.Gangs == nil {
		s.Gangs = s.Departures()
	}
	p := newPlanner(now, s)
	plan := make([]Decision, 0, len(s.Pods))
	for _, pod := range p.inOrder() {
		plan = append(plan, p.decide(pod))
	}
	slices.SortStableFunc(plan, func(a, b Decision) int {
		return cmp.Or(a.At.Compare(b.At), byUrgency(a.Pod, b.Pod))
	})
	return plan
}

// InTurn orders the decisions about the pods of all nodes, by which goes first where not all can:
// that which is due first; those without a deadline come last. Among equals those with volumes go
// first, as they take longer in the end, and then one node after the other, which takes fewer plans
// than having all of them under way to the end.
func InTurn(a, b Decision) int { return inTurn(a.due(), a.Pod, b.due(), b.Pod) }

// due is when the decision has to be carried out at the latest. A pod that waits to be surged has no
// better place in line for having to go in a wave if its turn does not come.
func (d Decision) due() time.Time {
	if d.Action == SurgeNow || d.waits {
		return d.Latest
	}
	return d.At
}

func inTurn(aDue time.Time, a *corev1.Pod, bDue time.Time, b *corev1.Pod) int {
	if order := interruption.CompareDeadlines(aDue, bDue); order != 0 {
		return order
	}
	return cmp.Or(byVolumes(a, b), cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), byUrgency(a, b))
}

// byUrgency orders the pods of one node: the longest grace period first, and among equals
// those with volumes, which still have to be detached afterwards.
func byUrgency(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(Grace(b), Grace(a)), byVolumes(a, b), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func byVolumes(a, b *corev1.Pod) int {
	switch has := HasVolumes(a); {
	case has == HasVolumes(b):
		return 0
	case has:
		return -1
	}
	return 1
}

// planner applies the rules to the pods of one situation.
type planner struct {
	now time.Time
	Situation
	taken map[share]int // how much of what each Deployment has to give this plan uses
}

// share is what a Deployment has to give for one action.
type share struct {
	of     types.NamespacedName
	action Action
}

func newPlanner(now time.Time, s Situation) *planner {
	return &planner{now: now, Situation: s, taken: map[share]int{}}
}

// others reports whether pods besides our own still have to leave.
func (p *planner) others() bool {
	return slices.ContainsFunc(p.Pods, func(pod *corev1.Pod) bool { return p.notOurs(pod) == "" && !p.isSelf(pod) })
}

// inOrder are the pods in the order of their decisions: what a Deployment has to give goes
// to the most urgent.
func (p *planner) inOrder() []*corev1.Pod { return slices.SortedFunc(slices.Values(p.Pods), byUrgency) }

// decide applies the rules in order; the first that has something to say about a pod
// decides.
func (p *planner) decide(pod *corev1.Pod) Decision {
	if reason := p.notOurs(pod); reason != "" {
		return Decision{Pod: pod, Action: Skip, Reason: reason, Notice: p.noticeOf(pod)}
	}
	d := Decision{Pod: pod, Notice: p.noticeOf(pod)}
	d.Meaningless, d.OfNamespace = p.meaningless(pod)
	d.preference = p.preferenceOf(pod)
	d.Peers, d.withGang = p.peersOf(pod), p.startWithGang(pod, d.preference)
	d.workload = DeploymentOf(pod)
	d.Grace = clampedGrace(p.now, pod, p.Deadline, p.Policy.Margin)
	d.Latest = evictionDeadline(pod, p.Deadline, p.Policy.Margin)
	d.At = interruption.Earlier(p.startOf(pod, d.Latest), d.withGang)
	if p.Policy.Strategy == Surge {
		d.NoSurge = p.noSurge(pod, d.workload, d.preference)
		d.Surge = d.NoSurge == ""
	}
	for _, rule := range rules {
		if action, reason := rule(p, pod, &d); action != "" {
			d.Action, d.Reason = action, reason
			return d
		}
	}
	d.Action, d.Reason = Evict, "nothing to wait for"
	return d
}

// startOf is when the eviction of a pod with that eviction deadline starts at the latest, for its own
// sake and its budget's.
func (p *planner) startOf(pod *corev1.Pod, latest time.Time) time.Time {
	if at, ok := p.Starts[pod.UID]; ok && at.Before(latest) && !IsSurged(pod) {
		return at
	}
	return latest
}

// rules hold a pod back or drive it out, in this order.
var rules = []func(*planner, *corev1.Pod, *Decision) (Action, string){
	isTerminating,
	isNoLongerNeeded,
	isPastLatest,
	isDue,
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

// isPastLatest: there is no more time to wait for anything.
func isPastLatest(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case d.Latest.IsZero() || p.now.Before(d.Latest):
		return "", ""
	case p.Refused[pod.UID] && p.blocked(pod) == Delete:
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
	return Evict, "its disruption budget lets pods go only in waves, and its wave has come"
}

// isSelfAndNotLast: once this process's own pod goes, somebody else has to take over.
func isSelfAndNotLast(p *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	return when(p.isSelf(pod) && p.others(), Later, "spot-handler's own pod: goes last")
}

// isPinned: what is said of this very pod about interruptions overrides what holds for any
// disruption.
func isPinned(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	reason, until := pinned(pod, p.now)
	if reason == "" || p.Deadline.IsZero() || d.preference.own {
		return "", ""
	}
	d.Until = until
	return Later, reason
}

// toleratesEverything: a pod that may be put back on this very node is evicted once, and as
// late as is safe, so it does not come back only to be ended with the node.
func toleratesEverything(p *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	return when(!p.Deadline.IsZero() && ToleratesAll(pod, p.Taint), Later, everyTaint)
}

const everyTaint = "tolerates every taint, and might be put back on this node"

func isHeld(p *planner, _ *corev1.Pod, d *Decision) (Action, string) {
	waits := p.Policy.Strategy != AtOnce || d.preference.When == WhenHold
	return when(waits && p.Capacity == PendingCapacity, Later, "waits for the replacement")
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

func (p *planner) isSelf(pod *corev1.Pod) bool {
	return pod.Name == p.Policy.Self.Name && pod.Namespace == p.Policy.Self.Namespace
}

// notOurs is the reason to leave a pod where it is, or "".
func (p *planner) notOurs(pod *corev1.Pod) string {
	switch {
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return "mirror pod"
	case Finished(pod):
		return "finished"
	case IsDaemon(pod):
		return "DaemonSet pod"
	case tolerates(pod, p.Taint):
		return "tolerates " + p.Taint.Key
	case !p.Since.IsZero() && pod.CreationTimestamp.After(p.Since) && ToleratesAll(pod, p.Taint):
		return "tolerates every taint, and has come since the node was marked"
	}
	return ""
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
	if d.preference.When == WhenNow && p.Gangs[GangOf(pod)].Asked { // its gang overrides that
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
	return Later, "no deadline: " + reason
}

// forbidden names a budget of the pod that never lets any go, or is empty.
func (p *planner) forbidden(pod *corev1.Pod) string {
	for _, budget := range p.Budgets {
		if budget.Namespace == pod.Namespace && covers(budget, pod.Labels) && budget.Status.ExpectedPods > 0 && waveSize(budget) <= 0 {
			return "its disruption budget " + budget.Name + " never lets any go"
		}
	}
	return ""
}

// isAtRiskOnly: without a deadline there is no hurry.
func isAtRiskOnly(p *planner, _ *corev1.Pod, _ *Decision) (Action, string) {
	return when(p.Deadline.IsZero() && p.Capacity != ReadyCapacity, Later, "no deadline: waits for a replacement")
}
