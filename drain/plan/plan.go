// Package plan decides which pods of interrupted nodes leave, in what order and by when. Nothing else
// decides that.
//
// It is pure: it starts nothing, locks nothing, asks nobody and reads no clock.
//
//	event ─► Fleet.Apply          what was seen of the cluster, or replied to a request
//	now   ─► Fleet.Next ─► Todo   what to watch, to request and to report, and when to ask again
//
// A [Fleet] is all nodes that are being drained, with what is known around them and what is under way. It
// plans each node when something has changed that its plan reads: [Plan] looks at one [Situation], which is
// a node with its pods, and applies the rules in their order. planWaves looks at all nodes, as the pods
// under one disruption budget leave one after the other, wherever they run. [Gang] has pods leave together,
// and replicaLedger counts what a Deployment has to give. A [Survey] is a Fleet that is only asked: it says
// what a drain would begin with.
//
// The daemon, the commands and the tests all use the same rules, so a forecast cannot differ from what is
// done.
package plan

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// Plan decides about every pod of a node, exactly once, earliest start first. It has no
// side effects and reads no clock.
func Plan(now time.Time, s Situation) []Decision {
	if s.Gangs == nil {
		s.Gangs = s.departures()
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

// due is when the decision has to be carried out at the latest. A pod that waits to be surged has no
// better place in line for having to go in a wave if its turn does not come.
func (d Decision) due() time.Time {
	if d.Action == SurgeNow || d.Waits {
		return d.Latest
	}
	return d.At
}

// precedes orders two pods of any nodes that are due at these times, by which goes first where not both can:
// that which is due first; those without a deadline come last. Among equals those with volumes go
// first, as they take longer in the end, and then one node after the other, which takes fewer plans
// than having all of them under way to the end.
func precedes(aDue time.Time, a *corev1.Pod, bDue time.Time, b *corev1.Pod) int {
	if order := interruption.CompareDeadlines(aDue, bDue); order != 0 {
		return order
	}
	return cmp.Or(byVolumes(a, b), cmp.Compare(a.Spec.NodeName, b.Spec.NodeName), byUrgency(a, b))
}

// byUrgency orders the pods of one node: the longest grace period first, and among equals
// those with volumes, which still have to be detached afterwards.
func byUrgency(a, b *corev1.Pod) int {
	return cmp.Or(
		cmp.Compare(Grace(b), Grace(a)),
		byVolumes(a, b),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.UID, b.UID),
	)
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

// Decide decides about one pod of the situation, as if it were the only one.
func decide(now time.Time, s Situation, pod *corev1.Pod) Decision {
	return newPlanner(now, s).decide(pod)
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
func (s *Situation) others() bool {
	return slices.ContainsFunc(s.Pods, func(pod *corev1.Pod) bool { return s.notOurs(pod) == "" && !s.isSelf(pod) })
}

// inOrder are the pods in the order of their decisions: what a Deployment has to give goes
// to the most urgent.
func (p *planner) inOrder() []*corev1.Pod { return slices.SortedFunc(slices.Values(p.Pods), byUrgency) }

// decide applies the rules in order; the first that has something to say about a pod
// decides.
func (p *planner) decide(pod *corev1.Pod) Decision {
	d := Decision{Pod: pod, Action: Skip, Reason: p.notOurs(pod), Deployment: DeploymentOf(pod), Notice: p.noticeOf(pod)}
	if d.Reason != "" {
		return d
	}
	d.Meaningless, d.OfNamespace = p.meaningless(pod)
	d.preference = p.preferenceOf(pod)
	d.withGang = p.startWithGang(pod, d.preference)
	d.Grace = clampedGrace(p.now, pod, p.Deadline, p.Policy.Margin)
	d.Latest = evictionDeadline(pod, p.Deadline, p.Policy.Margin)
	d.At = p.startOf(pod, d.Latest, d.withGang)
	d.DeletedIfRefused = p.blocked(pod) == Delete
	if p.Policy.Strategy == StrategySurge {
		d.NoSurge = p.noSurge(pod, d.Deployment, d.preference)
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

func (s *Situation) isSelf(pod *corev1.Pod) bool {
	return pod.Name == s.Policy.Self.Name && pod.Namespace == s.Policy.Self.Namespace
}

// notOurs is the reason to leave a pod where it is, or "".
func (s *Situation) notOurs(pod *corev1.Pod) string {
	switch {
	case pod.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return "mirror pod"
	case Finished(pod):
		return "finished"
	case IsDaemon(pod) && !goesLast(pod):
		return "DaemonSet pod"
	case IsDaemon(pod) && s.hasComeSince(pod):
		return "its DaemonSet has put it on this node since the node was marked"
	case tolerates(pod, s.Taint):
		return "tolerates " + s.Taint.Key
	case s.hasComeSince(pod) && ToleratesAll(pod, s.Taint):
		return "tolerates every taint, and has come since the node was marked"
	case s.putHere(pod) && !pod.CreationTimestamp.Time.Before(s.cordonSeen()):
		return "its controller has put it on this node since the node was marked"
	}
	return ""
}

// schedulerLag is how long after the cordon a scheduler may still put a pod on the node.
const schedulerLag = 10 * time.Second

// marked is when the node was cordoned, in seconds, as the API server notes creations.
func (s *Situation) marked() time.Time { return s.Since.Truncate(time.Second) }

// cordonSeen is from when on the scheduler is taken to put no pod on the node: with little time left, from
// halfway to the deadline, so that the pods that it has put there before can still be evicted.
func (s *Situation) cordonSeen() time.Time {
	marked, lag := interruption.Later(s.marked(), s.Marked.Truncate(time.Second)), schedulerLag
	if !s.Deadline.IsZero() {
		lag = max(0, min(lag, s.Deadline.Sub(marked)/2))
	}
	return marked.Add(lag)
}

// putHere reports whether a pod was made for this node after it was cordoned, though it does not
// tolerate that: its controller's template names the node (spec.nodeName), past the scheduler. Evicted,
// it is back in a moment.
func (s *Situation) putHere(pod *corev1.Pod) bool {
	return !s.Since.IsZero() && !pod.CreationTimestamp.Time.Before(s.marked()) && metav1.GetControllerOf(pod) != nil
}

// hasComeSince reports whether the pod has come to the node since that was marked. Its creation alone does not
// tell: it is in whole seconds, of the API server's clock.
func (s *Situation) hasComeSince(pod *corev1.Pod) bool {
	return !s.Since.IsZero() && (pod.CreationTimestamp.After(s.Since) || s.Came[pod.UID].After(s.Since))
}
