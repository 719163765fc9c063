package observe

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/notify"
	"spot-handler/handler/provisioner"
)

// nodeLife is what is known of one interruption of a node.
type nodeLife struct {
	name, pool  string
	rec         interruption.Record // the last one
	phases      []PhaseAt
	cordoned    time.Time
	replacement *Replacement
	pods        []*podLife
	drained     time.Time
	end         End
	endAt       time.Time
}

func (n *nodeLife) update(at time.Time, node *corev1.Node, rec interruption.Record) {
	n.rec = rec
	if len(n.phases) == 0 || n.phases[len(n.phases)-1].Phase != rec.Phase {
		n.phases = append(n.phases, PhaseAt{rec.Phase, at})
	}
	if node.Spec.Unschedulable {
		first(&n.cordoned, at)
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
	if n.replacement == nil || n.replacement.Name != r.Name {
		n.replacement = &Replacement{Name: r.Name, Requested: at}
	}
	n.replacement.Pool, n.replacement.State, n.replacement.Reason = r.Pool, r.State, r.Reason
	if r.State == provisioner.StateReady && n.replacement.Ready == nil {
		n.replacement.Ready = &at
	}
}

// left notes that a pod has gone.
func (n *nodeLife) left(at time.Time) {
	for _, p := range n.pods {
		if p.gone.IsZero() {
			return
		}
	}
	first(&n.drained, at)
}

func (n *nodeLife) tell(now time.Time, launched map[string]time.Time) Node {
	told := Node{
		Name: n.name, Pool: n.pool, Kind: n.rec.Kind, Action: n.rec.Action, Rehearsal: n.rec.Rehearsed(), Noticed: n.rec.Noticed, Deadline: n.rec.Deadline,
		Phases: n.phases, Cordoned: pointer(n.cordoned), End: n.end, EndAt: pointer(n.endAt), Drained: pointer(n.drained),
	}
	if n.replacement != nil {
		r := *n.replacement
		r.Launched = pointer(launched[r.Name])
		told.Replacement = &r
	}
	if n.rec.Phase.Over() {
		told.Ended, told.Counted = n.rec.Ended, n.rec.Pods
		if n.rec.Ended != nil && n.rec.Deadline != nil {
			s := n.rec.Deadline.Sub(*n.rec.Ended).Seconds()
			told.SlackSeconds = &s
		}
	}
	until := now
	if !n.endAt.IsZero() {
		until = n.endAt
	}
	for _, p := range n.pods {
		told.Pods = append(told.Pods, p.tell(until))
	}
	return told
}

// podLife is what is known of a pod that has to leave its node.
type podLife struct {
	node     *nodeLife
	pod      *corev1.Pod
	workload workloadRef
	steps    []Step
	surged   time.Time
	evicted  time.Time
	gone     time.Time
	finished bool          // its work was done
	given    time.Duration // -1 until it is told to end
	refusal  *Refusal

	forced, leftBehind bool // as the daemon has said
}

func newPodLife(node *nodeLife, pod *corev1.Pod) *podLife {
	return &podLife{node: node, pod: pod, workload: workloadOf(pod), given: -1}
}

// deletedByUs is the reason of the DisruptionTarget condition that the drain sets on a pod that
// it deletes past a budget.
const deletedByUs = "DeletionBySpotHandler"

func (p *podLife) update(at time.Time, pod *corev1.Pod, gone bool) {
	before := p.pod
	p.pod = pod
	p.grace(before, gone)
	if pod.Labels[drain.SurgedLabel] != "" {
		first(&p.surged, at)
	}
	if pod.DeletionTimestamp != nil {
		first(&p.evicted, at)
	}
	for _, c := range pod.Status.Conditions {
		p.forced = p.forced || c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == deletedByUs
	}
	if done := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed; gone || done {
		p.finished = p.finished || done && p.evicted.IsZero()
		first(&p.gone, at)
	}
	p.step(at)
}

// grace notes the grace period that the pod was given. Once its processes have ended, the kubelet
// deletes a pod with a grace period of zero, which does not show what it had; a pod deleted like
// that from the start had none.
func (p *podLife) grace(before *corev1.Pod, gone bool) {
	var given time.Duration
	if s := p.pod.DeletionGracePeriodSeconds; s != nil {
		given = time.Duration(*s) * time.Second
	}
	deleted, already := p.pod.DeletionTimestamp != nil, before.DeletionTimestamp != nil && p.given >= 0
	if (deleted && given > 0 && !gone) || (!already && (gone || deleted)) {
		if p.given < 0 || given < p.given {
			p.given = given
		}
	}
}

// refuse notes what the API server has said.
func (p *podLife) refuse(at time.Time, e *corev1.Event) {
	if p.refusal == nil {
		p.refusal = &Refusal{From: at}
	}
	p.refusal.Times, p.refusal.Reason = max(p.refusal.Times, int(e.Count), 1), interruption.Clip(notify.Refusal(e))
	p.step(at)
}

// step goes on to the next step if the pod's state is another.
func (p *podLife) step(at time.Time) {
	if !p.gone.IsZero() {
		return
	}
	s := Step{From: at}
	refusal := ""
	if p.refusal != nil {
		refusal = p.refusal.Reason
	}
	s.State, s.For = status.StateOf(p.node.rec, p.pod, refusal)
	if n := len(p.steps); n > 0 && p.steps[n-1].State == s.State && p.steps[n-1].For == s.For {
		return
	}
	p.steps = append(p.steps, s)
}

func (p *podLife) tell(until time.Time) Pod {
	told := Pod{
		Namespace: p.pod.Namespace, Name: p.pod.Name, UID: string(p.pod.UID), Workload: p.workload.String(),
		GraceSeconds: graceOf(p.pod), Steps: make([]Step, len(p.steps)), Refusal: p.refusal,
		Surged: pointer(p.surged), Evicted: pointer(p.evicted), Gone: pointer(p.gone), Outcome: p.outcome(),
	}
	if p.given >= 0 && !p.finished {
		s := int64(p.given / time.Second)
		told.GivenSeconds = &s
	}
	if !p.gone.IsZero() {
		until = p.gone
	}
	for i, s := range p.steps {
		if s.To = until; i+1 < len(p.steps) {
			s.To = p.steps[i+1].From
		}
		if i == 0 { // it waits from the notice on, whenever that was seen
			s.From = interruption.Earlier(s.From, p.node.rec.Noticed)
		}
		told.Steps[i] = s
	}
	return told
}

// watchesDiffer is how far two watches can be apart.
const watchesDiffer = time.Second

// outcome judges as the drain does, which counts when it ends. What Nodes, pods and Events tell
// comes in any order, so the judgement is made late.
func (p *podLife) outcome() plan.Outcome {
	over, ended := p.node.over()
	after := func(at time.Time) bool { return at.IsZero() || over && at.After(ended.Add(watchesDiffer)) }
	switch {
	case p.finished:
		return plan.Graceful
	case p.leftBehind, over && after(p.evicted) && after(p.gone), p.node.end == Gone && p.evicted.IsZero():
		return plan.Left
	case p.gone.IsZero() && !over: // the drain goes on, or was called off
		return ""
	case p.forced:
		return plan.Forced
	case p.given < time.Duration(graceOf(p.pod))*time.Second, reached(p.node.phases, interruption.DeadlineReached) && (p.gone.IsZero() || p.gone.After(ended)):
		return plan.Truncated
	}
	return plan.Graceful
}

// over is when the end of the drain was seen, by the same clock as everything else.
func (n *nodeLife) over() (over bool, at time.Time) {
	for _, p := range n.phases {
		if p.Phase.Over() {
			return true, p.At
		}
	}
	return false, at
}

func reached(phases []PhaseAt, phase interruption.Phase) bool {
	for _, p := range phases {
		if p.Phase == phase {
			return true
		}
	}
	return false
}

func graceOf(pod *corev1.Pod) int64 {
	if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		return *g
	}
	return corev1.DefaultTerminationGracePeriodSeconds
}

// first keeps the earliest time of what may be told several times.
func first(mark *time.Time, at time.Time) {
	if mark.IsZero() {
		*mark = at
	}
}

func pointer(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
