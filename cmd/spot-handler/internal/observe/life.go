package observe

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/drain"
	drainplan "spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
	"spot-handler/handler/provisioner"
)

// nodeLife is one interruption of a node: what is recorded of it so far, and the pods that have to
// leave.
type nodeLife struct {
	Node
	node *corev1.Node        // as it was shown last
	rec  interruption.Record // the last one
	pods []*podLife
}

func (n *nodeLife) update(at time.Time, node *corev1.Node, rec interruption.Record) {
	n.rec = rec
	if n.Phase() != rec.Phase {
		n.Phases = append(n.Phases, PhaseAt{rec.Phase, at})
	}
	if node.Spec.Unschedulable {
		markFirst(&n.Cordoned, at)
	}
	n.replace(at)
	for _, p := range n.pods {
		p.step(at) // what it waits for might have changed
	}
}

func (n *nodeLife) replace(at time.Time) {
	r := n.rec.Replacement
	if r == nil {
		return
	}
	if n.Replacement == nil || n.Replacement.Name != r.Name {
		n.Replacement = &Replacement{Requested: at}
	}
	n.Replacement.Replacement = *r
	if r.State == provisioner.StateReady {
		markFirst(&n.Replacement.Ready, at)
	}
}

// left notes that a pod has gone.
func (n *nodeLife) left(at time.Time) {
	for _, p := range n.pods {
		if p.Gone == nil {
			return
		}
	}
	markFirst(&n.Drained, at)
}

// recorded is what has been seen until now; launched is when replacements had an instance.
func (n *nodeLife) recorded(now time.Time, launched map[string]time.Time) Node {
	r := n.Node
	r.Kind, r.Action, r.Rehearsal, r.Noticed = n.rec.Kind, n.rec.Action, n.rec.Rehearsed(), n.rec.Noticed
	deadline, ended := n.rec.Deadline, n.rec.Ended
	if !deadline.IsZero() {
		r.Deadline = &deadline
	}
	if n.Replacement != nil {
		replacement := *n.Replacement
		if at, ok := launched[replacement.Name]; ok {
			replacement.Launched = &at
		}
		r.Replacement = &replacement
	}
	if n.rec.Phase.Over() && !ended.IsZero() {
		r.Ended, r.Counted = &ended, n.rec.Pods
		if !deadline.IsZero() {
			r.SlackSeconds = new(deadline.Sub(ended).Seconds())
		}
	}
	now = ptr.Deref(n.EndAt, now)
	for _, p := range n.pods {
		r.Pods = append(r.Pods, p.recorded(now))
	}
	slices.SortFunc(r.Pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return r
}

// podLife is a pod that has to leave its node, and what is recorded of it so far.
type podLife struct {
	Pod
	node     *nodeLife
	pod      *corev1.Pod
	finished bool // its work was done

	forced, notEvicted bool // as the daemon has said
}

func newPodLife(node *nodeLife, pod *corev1.Pod) *podLife {
	return &podLife{
		Pod: Pod{
			Namespace:    pod.Namespace,
			Name:         pod.Name,
			UID:          string(pod.UID),
			Workload:     plan.WorkloadOf(pod),
			GraceSeconds: int64(drainplan.Grace(pod).Seconds()),
		},
		node: node,
		pod:  pod,
	}
}

func (p *podLife) update(at time.Time, pod *corev1.Pod, gone bool) {
	before := p.pod
	p.pod = pod
	p.grace(before, gone)
	if drainplan.IsSurged(pod) {
		markFirst(&p.Surged, at)
	}
	if pod.DeletionTimestamp != nil {
		markFirst(&p.Evicted, at)
	}
	for _, c := range pod.Status.Conditions {
		p.forced = p.forced || c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == drain.ReasonForced
	}
	if done := drainplan.Finished(pod); gone || done {
		p.finished = p.finished || done && p.Evicted == nil
		markFirst(&p.Gone, at)
	}
	p.step(at)
}

// grace notes the grace period that the pod was given. Once its processes have ended, the kubelet
// deletes a pod with a grace period of zero, which does not show what it had; a pod deleted like
// that from the start had none.
func (p *podLife) grace(before *corev1.Pod, gone bool) {
	given := ptr.Deref(p.pod.DeletionGracePeriodSeconds, 0)
	deleted, already := p.pod.DeletionTimestamp != nil, before.DeletionTimestamp != nil && p.GivenSeconds != nil
	if (deleted && given > 0 && !gone) || (!already && (gone || deleted)) {
		if p.GivenSeconds == nil || given < *p.GivenSeconds {
			p.GivenSeconds = &given
		}
	}
}

// refuse notes what the API server has said.
func (p *podLife) refuse(at time.Time, e *corev1.Event) {
	r := ptr.Deref(p.Refusal, Refusal{From: at})
	r.Times, r.Reason = max(r.Times, int(e.Count), 1), interruption.Clip(notify.Refusal(e))
	p.Refusal = &r
	p.step(at)
}

// step goes on to the next step if the pod's state is another.
func (p *podLife) step(at time.Time) {
	if p.Gone != nil {
		return
	}
	s := Step{From: at}
	s.State, s.For = status.StateOf(p.node.rec, p.pod, ptr.Deref(p.Refusal, Refusal{}).Reason)
	if n := len(p.Steps); n > 0 && p.Steps[n-1].State == s.State && p.Steps[n-1].For == s.For {
		return
	}
	p.Steps = append(p.Steps, s)
}

// recorded is what has been seen until a moment.
func (p *podLife) recorded(until time.Time) Pod {
	r := p.Pod
	r.Outcome, r.Steps = p.outcome(), slices.Clone(p.Steps)
	if p.finished {
		r.GivenSeconds = nil
	}
	until = ptr.Deref(p.Gone, until)
	for i := range r.Steps {
		if r.Steps[i].To = until; i+1 < len(r.Steps) {
			r.Steps[i].To = r.Steps[i+1].From
		}
	}
	if len(r.Steps) > 0 { // it waits from the notice on, whenever that was seen
		r.Steps[0].From = interruption.Earlier(r.Steps[0].From, p.node.rec.Noticed)
	}
	return r
}

// watchesDiffer is how far two watches can be apart.
const watchesDiffer = time.Second

// outcome judges as the drain does, which counts when it ends. What Nodes, pods and Events show
// comes in any order, so the judgement is made late.
func (p *podLife) outcome() plan.Outcome {
	over := p.node.over()
	deadline := slices.ContainsFunc(p.node.Phases, func(at PhaseAt) bool { return at.Phase == interruption.DeadlineReached })
	after := func(at *time.Time) bool { return at == nil || over != nil && at.After(over.Add(watchesDiffer)) }
	switch {
	case p.finished:
		return plan.Graceful
	case p.notEvicted, over != nil && after(p.Evicted) && after(p.Gone), p.node.End == Gone && p.Evicted == nil:
		return plan.Left
	case p.Gone == nil && over == nil: // the drain goes on, or was cancelled
		return ""
	case p.forced:
		return plan.Forced
	case p.GivenSeconds == nil, *p.GivenSeconds < int64(drainplan.Grace(p.pod).Seconds()), deadline && (p.Gone == nil || p.Gone.After(*over)):
		return plan.Truncated
	}
	return plan.Graceful
}

// markFirst keeps the earliest time of what may be seen several times.
func markFirst(mark **time.Time, at time.Time) {
	if *mark == nil {
		*mark = &at
	}
}
