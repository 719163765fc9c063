package drain

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// Strategy says what pods wait for before they are evicted.
type Strategy string

const (
	// Surge has the successors of a Deployment's pods made first, as many at a time as the
	// Deployment's maxSurge allows, and evicts the pods when these are available. All other
	// pods are held.
	Surge Strategy = "surge"
	// Hold keeps a pod running until the replacement is ready or its latest safe
	// start has come.
	Hold Strategy = "hold"
	// AtOnce evicts every pod as soon as the replacement has been requested.
	AtOnce Strategy = "at-once"
)

// Strategies lists every strategy.
func Strategies() []Strategy { return []Strategy{Surge, Hold, AtOnce} }

// BlockedPolicy says what becomes of a pod whose eviction is still refused at its latest
// safe start.
type BlockedPolicy string

const (
	// Leave respects the disruption budget to the end: the eviction is tried again until the
	// deadline, and then the pod dies with its node.
	Leave BlockedPolicy = "leave"
	// Delete deletes the pod past its budget, while its grace period still fits.
	Delete BlockedPolicy = "delete"
)

// BlockedPolicies lists every policy.
func BlockedPolicies() []BlockedPolicy { return []BlockedPolicy{Leave, Delete} }

// Capacity is how far the node's replacement has come, as far as a drain has to know.
type Capacity int

const (
	// NoCapacity: no replacement was or could be requested, so there is nothing to wait for.
	NoCapacity Capacity = iota
	// PendingCapacity: requested, and still booting.
	PendingCapacity
	// ReadyCapacity: it takes pods.
	ReadyCapacity
)

// Policy is the operator's part of a plan.
type Policy struct {
	Strategy Strategy
	Blocked  BlockedPolicy
	// Margin is kept free between the planned end of the last pod and the deadline.
	Margin time.Duration
	// Self is the pod that this process runs in, if it runs in one. It goes last.
	Self types.NamespacedName
}

// Interruption is the node's part of a plan.
type Interruption struct {
	// Taint is what the node carries; pods that tolerate it by its name stay.
	Taint corev1.Taint
	// Since is when the node was marked. Pods that tolerate every taint and have come later
	// are not chased; zero chases them all.
	Since time.Time
	// Deadline is when the node ends. Zero means that the node is only at risk: pods leave
	// when the replacement is ready, and not before.
	Deadline time.Time
	Capacity Capacity
}

// Situation is all that a plan is made from.
type Situation struct {
	Interruption
	Policy Policy

	// Ready is since when the replacement is Ready; zero if it is not.
	Ready time.Time
	// Pods are all pods of the node.
	Pods []*corev1.Pod

	// Budgets are the disruption budgets of the pods' namespaces, as far as they are known.
	Budgets []*policyv1.PodDisruptionBudget
	// Waves are those of the pods of all draining nodes, see PlanWaves.
	Waves

	// Workloads describes each Deployment, by the name that DeploymentOf gives. One that is
	// missing is not known yet.
	Workloads map[types.NamespacedName]Workload
	// AllReady is since when the replacements of all nodes with pods of a Deployment are Ready;
	// one that is missing waits for some.
	AllReady map[types.NamespacedName]time.Time
	// Shared says whether several pods can use a PersistentVolumeClaim at the same time. One
	// that is missing is not known yet.
	Shared map[types.NamespacedName]bool
	// Surroundings are what of a namespace decides whether its pods can be surged. A namespace
	// that is missing is not known yet.
	Surroundings map[string]Surroundings

	// Refused are the pods whose eviction the API server has refused.
	Refused map[types.UID]bool
	// Fixed are the pods that cannot be surged, as was seen when it was tried, and why.
	Fixed map[types.UID]string
	// Answers are what pods have answered to notices, by their UIDs.
	Answers map[types.UID]When
	// Namespaces are what the namespaces of the pods ask for. One that is missing is not known
	// yet.
	Namespaces map[string]Wishes
	// Gangs are the departures of the pods' gangs, as their pods on all draining nodes decide them;
	// nil: only those of this node are known.
	Gangs map[Gang]Departure
}

// Action is what a plan says of a pod.
type Action string

const (
	Skip     Action = "skip"   // not ours to move
	Wait     Action = "wait"   // it is already terminating
	Later    Action = "hold"   // later: at Decision.At, or when the plan's inputs change
	SurgeNow Action = "surge"  // now: have its ReplicaSet make a successor
	Evict    Action = "evict"  // now
	Force    Action = "delete" // now, past its disruption budget
	End      Action = "end"    // now, as its ReplicaSet would have ended it
	Return   Action = "return" // now: give it back to its ReplicaSet
)

// Decision is the plan for one pod, with the reason for it.
type Decision struct {
	Pod    *corev1.Pod
	Action Action
	Reason string

	// At is when the pod's eviction starts at the latest. It is Latest, or earlier where a
	// disruption budget lets the pods that it covers go only in waves, or where another pod of
	// its gang has to go. Zero means that there is no deadline.
	At time.Time
	// Latest is the pod's latest safe start: an eviction that starts later cannot give
	// the pod its grace period before the deadline. Zero means that there is no deadline.
	Latest time.Time
	// Until is when the decision changes by the clock, besides At and Latest: the pod's own wish
	// to stay lapses, or its successor has had its time. Zero where it does not.
	Until time.Time
	// Grace overrides the pod's own grace period, in seconds, where that no longer fits; nil
	// otherwise.
	Grace *int64

	// Stays: the node is only at risk, and that is no reason for this pod to leave.
	Stays bool
	// Surge: the pod's successor is made before it leaves.
	Surge bool
	// NoSurge says why not, with the strategy Surge.
	NoSurge string

	// Meaningless is what is asked for the pod in words that mean nothing, and OfNamespace says
	// that its namespace asks it for all of its pods. It changes nothing.
	Meaningless string
	OfNamespace bool
	// Notice is what the pod's NoticeAnnotation asks for, if it is to be told; it changes nothing
	// either.
	Notice string
	// Peers is the pod's gang, if the other pods of it are to be told that this one leaves; it
	// changes nothing either.
	Peers Gang

	// workload is the Deployment of a pod that has one by its ReplicaSet's name.
	workload types.NamespacedName
	// waits: the pod is held for what the workload has to give, and for nothing else.
	waits bool
	// takes: the action needs one of what the workload has to give.
	takes bool
}

// Moves reports whether the pod has to leave the node.
func (d Decision) Moves() bool { return d.Action != Skip && !d.Stays }

// Plan decides about every pod of a node, exactly once, earliest start first. It has no
// side effects and reads no clock.
func Plan(now time.Time, s Situation) []Decision {
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
	switch {
	case aDue.IsZero() && !bDue.IsZero():
		return 1
	case bDue.IsZero() && !aDue.IsZero():
		return -1
	}
	if order := aDue.Compare(bDue); order != 0 {
		return order
	}
	return cmp.Or(byVolumes(a, b), cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), byUrgency(a, b))
}

// Leaving are those of a node's pods that have to leave it, which no policy changes.
func Leaving(now time.Time, in Interruption, pods []*corev1.Pod) []*corev1.Pod {
	p := newPlanner(now, Situation{Interruption: in, Pods: pods})
	return slices.DeleteFunc(p.inOrder(), func(pod *corev1.Pod) bool { return !p.decide(pod).Moves() })
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
	others bool // pods besides our own still have to leave

	taken map[share]int // how much of what each Deployment has to give this plan uses
}

// share is what a Deployment has to give for one action.
type share struct {
	of     types.NamespacedName
	action Action
}

func newPlanner(now time.Time, s Situation) *planner {
	p := &planner{now: now, Situation: s, taken: map[share]int{}}
	if s.Gangs == nil {
		p.Gangs = s.Departures()
	}
	p.others = slices.ContainsFunc(s.Pods, func(pod *corev1.Pod) bool { return p.notOurs(pod) == "" && !p.isSelf(pod) })
	return p
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
	d := Decision{Pod: pod, Latest: latestStart(pod, p.Deadline, p.Policy.Margin), workload: DeploymentOf(pod)}
	d.At = interruption.Earlier(p.startOf(pod), p.startWithGang(pod))
	d.Grace = clampedGrace(p.now, pod, p.Deadline, p.Policy.Margin)
	d.Meaningless, d.OfNamespace = p.meaningless(pod)
	d.Notice, d.Peers = p.noticeOf(pod), p.peersOf(pod)
	if p.Policy.Strategy == Surge {
		d.NoSurge = p.noSurge(pod)
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

// startOf is when the pod's eviction starts at the latest, for its own sake and its budget's.
func (p *planner) startOf(pod *corev1.Pod) time.Time {
	latest := latestStart(pod, p.Deadline, p.Policy.Margin)
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
	isOfUnknownNamespace,
	isDue,
	isNotToBeSurged,
	findsNoPlace,
	isNotWorthIt,
	isSelfAndNotLast,
	isAtRiskOnly,
	isPinned,
	toleratesEverything,
	leavesAsWished,
	isSurged,
	isToBeSurged,
	isHeld,
	hasNewHome,
}

func isTerminating(_ *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	if pod.DeletionTimestamp == nil {
		return "", ""
	}
	return Wait, "terminating"
}

// isPastLatest: there is no more time to wait for anything.
func isPastLatest(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case d.Latest.IsZero() || p.now.Before(d.Latest):
		return "", ""
	case p.Refused[pod.UID] && p.blocked(pod) == Delete:
		return Force, "latest safe start has come, and the eviction is still refused"
	}
	return Evict, "latest safe start has come"
}

// isDue: its gang leaves, or the pods under one budget leave in waves, and it is this pod's turn.
func isDue(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case d.At.IsZero() || p.now.Before(d.At):
		return "", ""
	case d.At.Equal(p.startWithGang(pod)):
		return Evict, "a pod of its gang has to leave now"
	}
	return Evict, "its disruption budget lets pods go only in waves, and its wave has come"
}

// isSelfAndNotLast: once this process's own pod goes, somebody else has to take over.
func isSelfAndNotLast(p *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	if !p.isSelf(pod) || !p.others {
		return "", ""
	}
	return Later, "spot-handler's own pod: goes last"
}

// isPinned: what is said of this very pod about interruptions overrides what holds for any
// disruption.
func isPinned(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	reason, until := pinned(pod, p.now)
	if reason == "" || p.Deadline.IsZero() || p.wishOf(pod).own {
		return "", ""
	}
	d.Until = until
	return Later, reason
}

// toleratesEverything: a pod that may be put back on this very node is evicted once, and as
// late as is safe, so it does not come back only to be ended with the node.
func toleratesEverything(p *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	if p.Deadline.IsZero() || !toleratesAll(pod, p.Taint) {
		return "", ""
	}
	return Later, everyTaint
}

const everyTaint = "tolerates every taint, and might be put back on this node"

func isHeld(p *planner, pod *corev1.Pod, _ *Decision) (Action, string) {
	waits := p.Policy.Strategy != AtOnce || p.wishOf(pod).When == WhenHold
	if !waits || p.Capacity != PendingCapacity {
		return "", ""
	}
	return Later, "waits for the replacement"
}

func hasNewHome(p *planner, _ *corev1.Pod, _ *Decision) (Action, string) {
	if p.Capacity != ReadyCapacity {
		return "", ""
	}
	return Evict, "replacement is ready"
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
	case !p.Since.IsZero() && pod.CreationTimestamp.After(p.Since) && toleratesAll(pod, p.Taint):
		return "tolerates every taint, and has come since the node was marked"
	}
	return ""
}

// IsDaemon reports whether a DaemonSet made the pod. Then it would be made again on the
// same node, whatever the node's taints.
func IsDaemon(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

// GivesUp reports whether a decision, once carried out, ends all surges of its pod's Deployment.
func (d Decision) GivesUp() bool { return d.takes && d.Action == Return }
