package forecast

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
)

const (
	// beginsAfter is how long after the notice the first plan is made: the record is written and seen,
	// and the node's pods, their budgets and their Deployments are read.
	beginsAfter = 500 * time.Millisecond

	// wavesFor is how old the waves can be, as in the drain.
	wavesFor = 250 * time.Millisecond
)

// drainEnd is when the drain ends at the latest.
func drainEnd(noticed, deadline time.Time) time.Time {
	return interruption.Record{Received: noticed, Deadline: &deadline}.DrainEnd()
}

// announce puts the course of every lost node on the agenda.
func (w *world) announce() {
	for _, l := range w.lost {
		w.at(l.noticed, podsFirst, func() { l.closed = true })
		w.at(l.noticed.Add(beginsAfter), podsFirst, func() { w.begin(l) })
		if !l.deadline.IsZero() {
			w.at(l.end, thenDrain, func() { w.end(l) })
			w.at(l.deadline, thenDrain, func() { w.take(l) })
		}
	}
}

// begin starts the drain, and has the replacement boot.
func (w *world) begin(l *lostNode) {
	l.begun, l.capacity = true, l.Capacity
	switch {
	case l.capacity == drain.ReadyCapacity:
		l.ready = w.now
	case l.capacity == drain.PendingCapacity:
		w.at(l.noticed.Add(w.in.Assumptions.Boot.Duration()), podsFirst, func() { w.boots(l) })
	}
	w.plan(l)
}

// boots makes the replacement a node that takes pods. It runs the lost node's DaemonSets too.
func (w *world) boots(l *lostNode) {
	l.ready, l.capacity = w.now, drain.ReadyCapacity
	if l.Becomes != nil {
		n := w.addNode(l.Becomes)
		n.closed = false
		for _, p := range l.node.pods {
			if drain.IsDaemon(p.Pod) {
				c := *p.Pod
				c.UID += types.UID("-on-" + n.Name)
				n.take(&pod{Pod: &c})
			}
		}
	}
	for _, other := range w.lost { // some wait until all replacements are Ready
		w.plan(other)
	}
	w.schedule()
}

// plan has the drain look at the node again.
func (w *world) plan(l *lostNode) {
	if !l.begun || l.over {
		return
	}
	l.dirty = true
	if !w.draining {
		w.draining = true
		w.at(w.now.Add(react), thenDrain, w.round)
	}
}

// step is a decision of the drain that is to be carried out.
type step struct {
	drain.Decision
	of *lostNode
}

// round plans every node again that has changed, and carries out what is due: the most urgent first,
// over all nodes.
func (w *world) round() {
	w.draining = false
	w.renewWaves()
	var steps []step
	for _, l := range w.lost {
		if l.dirty && !l.over {
			l.dirty = false
			steps = append(steps, w.look(l)...)
		}
	}
	slices.SortStableFunc(steps, func(a, b step) int { return cmp.Or(byTime(a.At, b.At), byVolumes(a.Pod, b.Pod)) })
	for _, s := range steps {
		w.carryOut(s)
	}
}

// byTime orders times, where zero comes last.
func byTime(a, b time.Time) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return a.Compare(b)
}

func byVolumes(a, b *corev1.Pod) int {
	switch {
	case drain.HasVolumes(a) == drain.HasVolumes(b):
		return 0
	case drain.HasVolumes(a):
		return -1
	}
	return 1
}

// look plans for one node, notes what its pods wait for, and returns what is due.
func (w *world) look(l *lostNode) (due []step) {
	moved := true
	next := time.Time{}
	soon := func(t time.Time) {
		if t.After(w.now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, d := range drain.Plan(w.now, w.situation(l)) {
		p := w.pods[d.Pod.UID]
		w.tell(l, p, d)
		if d.Action == drain.Skip {
			continue
		}
		moved = false
		soon(d.At)
		soon(d.Latest)
		soon(d.Until)
		if d.Stays {
			continue
		}
		switch d.Action {
		case drain.SurgeNow, drain.Evict, drain.Force, drain.End, drain.Return:
			due = append(due, step{d, l})
		}
	}
	if !next.IsZero() && !next.Equal(l.wake) {
		l.wake = next
		w.at(next, podsFirst, func() { w.plan(l) })
	}
	if moved && l.emptied.IsZero() {
		l.emptied = w.now
		wait := time.Duration(0)
		if w.in.Attached[l.Name()] > 0 {
			wait = w.in.Assumptions.Detach.Duration()
		}
		w.at(w.now.Add(wait), thenDrain, func() { w.drained(l) })
	}
	return due
}

// Name is the Node's.
func (l *lostNode) Name() string { return l.Lost.Node.Name }

// situation is what the drain would plan the node with.
func (w *world) situation(l *lostNode) drain.Situation {
	s := drain.Situation{
		Interruption: drain.Interruption{
			Taint: marks.Taint(interruption.Record{Kind: l.Kind}), Since: l.noticed, Deadline: l.deadline, Capacity: l.capacity,
		},
		Policy: w.in.Policy, Starts: w.starts, Shared: w.in.Shared, Surroundings: map[string]drain.Surroundings{},
		Workloads: map[types.NamespacedName]drain.Workload{}, AllReady: map[types.NamespacedName]time.Time{},
		Refused: map[types.UID]bool{}, Fixed: l.fixed, Namespaces: map[string]drain.Wishes{},
	}
	namespaces := map[string]bool{}
	for _, uid := range slices.Sorted(maps.Keys(l.pods)) {
		p := l.pods[uid]
		s.Pods = append(s.Pods, p.Pod)
		if !namespaces[p.Namespace] {
			namespaces[p.Namespace] = true
			s.Surroundings[p.Namespace], s.Namespaces[p.Namespace] = w.around[p.Namespace], w.in.Namespaces[p.Namespace]
			for _, b := range w.budgets[p.Namespace] {
				s.Budgets = append(s.Budgets, b.PodDisruptionBudget)
			}
		}
		if of := p.workload; of != nil && of.of.Name != "" {
			s.Workloads[of.of] = w.count(of)
			s.AllReady[of.of] = w.allReady(of)
		}
	}
	for uid := range l.refused {
		s.Refused[uid] = true
	}
	return s
}

// count is what plans are made with of a Deployment.
func (w *world) count(of *workload) drain.Workload {
	if of.counted {
		return of.count
	}
	var pods []*corev1.Pod
	for _, uid := range slices.Sorted(maps.Keys(of.pods)) {
		pods = append(pods, of.pods[uid].Pod)
	}
	count, next := of.deployment.Workload(w.now, pods)
	switch {
	case count.Lacking == 0:
		of.lacking = time.Time{}
	case of.lacking.IsZero():
		of.lacking = w.now
		fallthrough
	case w.now.Before(of.lacking.Add(drain.FailsFor)):
		count.Lacking = 0
		if at := of.lacking.Add(drain.FailsFor); next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if count.Selector != nil {
		count.Refuses = cmp.Or(count.Refuses, of.gaveUp)
	}
	if !next.IsZero() {
		w.at(next, podsFirst, func() {
			of.counted = false
			for l := range of.users {
				w.plan(l)
			}
		})
	}
	of.count, of.counted = count, true
	return count
}

// allReady is since when the replacements of all nodes with pods of the workload are Ready; zero if
// some are not.
func (w *world) allReady(of *workload) (since time.Time) {
	for l := range of.users {
		switch {
		case l.over:
		case l.ready.IsZero():
			return time.Time{}
		case l.ready.After(since):
			since = l.ready
		}
	}
	return since
}

// renewWaves works out the latest starts of pods that share a budget.
func (w *world) renewWaves() {
	if w.in.Policy.Strategy == drain.AtOnce || !w.startsFrom.IsZero() && w.now.Sub(w.startsFrom) < wavesFor {
		return
	}
	w.startsFrom = w.now
	var budgets []*policyv1.PodDisruptionBudget
	for _, all := range w.budgets {
		for _, b := range all {
			if len(b.users) > 0 && b.Status.ExpectedPods > b.Status.DesiredHealthy {
				budgets = append(budgets, b.PodDisruptionBudget)
			}
		}
	}
	if len(budgets) == 0 {
		w.starts = nil
		return
	}
	var situations []drain.Situation
	for _, l := range w.lost {
		if l.begun && !l.over {
			situations = append(situations, w.situation(l))
		}
	}
	fresh := drain.Waves(w.now, situations, budgets)
	for _, l := range w.lost {
		for uid := range l.pods {
			if before, ok := w.starts[uid]; fresh[uid] != before || !ok {
				if _, now := fresh[uid]; now {
					w.plan(l)
				}
			}
		}
	}
	w.starts = fresh
}

// carryOut does what the drain would do, and has the API server answer.
func (w *world) carryOut(s step) {
	p := w.pods[s.Pod.UID]
	if p == nil || p.DeletionTimestamp != nil {
		return
	}
	if of := p.workload; of != nil && !w.count(of).Offers(s.Decision) {
		return // another node's pod has taken it; it is planned again when there is more
	}
	switch s.Action {
	case drain.SurgeNow:
		w.surge(s, p)
	case drain.Return:
		w.putBack(s, p)
	case drain.End:
		p.story.leaves(w, s.Decision)
		w.delete(p, s.Grace)
	case drain.Force:
		p.story.leaves(w, s.Decision)
		p.story.Outcome, p.story.Reason = Forced, s.of.refused[p.UID]
		delete(s.of.refused, p.UID)
		w.delete(p, s.Grace)
	case drain.Evict:
		if b := p.lane(); b != nil && w.now.Before(b.free) {
			w.at(b.free, podsFirst, func() { w.plan(s.of) })
			return
		}
		refusal, by := w.evict(p)
		if b := p.lane(); b != nil && refusal == "" {
			b.free = w.now.Add(perEviction)
		}
		if refusal == "" {
			delete(s.of.refused, p.UID)
			p.story.leaves(w, s.Decision)
			w.delete(p, s.Grace)
			return
		}
		p.story.waits(w, waitsForBudget(by))
		if _, again := s.of.refused[p.UID]; !again {
			if by != nil {
				by.report.Refused++
			}
			w.plan(s.of)
		}
		s.of.refused[p.UID] = refusal
	}
}

// lane is the budget that takes evictions one by one.
func (p *pod) lane() *budget {
	if len(p.budgets) != 1 {
		return nil
	}
	return p.budgets[0]
}

func waitsForBudget(by *budget) string {
	if by == nil {
		return "two disruption budgets cover it"
	}
	return "disruption budget " + by.Name
}

// surge has the pod's ReplicaSet let it go.
func (w *world) surge(s step, p *pod) {
	next, err := drain.AsSurged(p.Pod, w.now)
	if err != nil {
		s.of.fixed[p.UID] = err.Error()
		return
	}
	from := p.controller
	p.story.Surge = true
	p.controller = nil
	w.show(p, next)
	w.control(from)
}

// putBack undoes a surge.
func (w *world) putBack(s step, p *pod) {
	next := drain.AsReturned(p.Pod)
	s.of.fixed[p.UID] = s.Reason
	if s.GivesUp() && p.workload.gaveUp == "" {
		p.workload.gaveUp = s.Reason
	}
	p.story.Surge, p.story.NoSurge = false, s.Reason
	if owner := metav1.GetControllerOf(next); owner != nil {
		p.controller = w.controllers[owner.UID]
	}
	w.show(p, next)
}

// drained ends the drain of an empty node.
func (w *world) drained(l *lostNode) {
	if !l.over {
		l.over = true
		l.report.Empty, l.report.Ended = w.offsetOf(w.now), w.offsetOf(w.now)
	}
}

// end ends the drain of a node that is not empty when time is up.
func (w *world) end(l *lostNode) {
	if l.over {
		return
	}
	l.over = true
	l.report.Ended = w.offsetOf(w.now)
	for _, p := range l.pods {
		if p.story == nil || p.story.Outcome == Stays {
			continue
		}
		switch {
		case p.story.Leaves == nil && p.DeletionTimestamp == nil:
			p.story.waits(w, "")
			p.story.Outcome, p.story.Reason = Left, cmp.Or(l.refused[p.UID], "its eviction was never tried")
		case p.story.Outcome == Graceful:
			p.story.Outcome, p.story.Reason = Truncated, "it had not ended when the drain did"
		}
	}
}

// take is EC2 taking the node, with all that is on it.
func (w *world) take(l *lostNode) {
	l.dead, l.closed = true, true
	for _, uid := range slices.Sorted(maps.Keys(l.pods)) {
		w.gone(l.pods[uid])
	}
}

func (w *world) isDead(n *node) bool {
	return slices.ContainsFunc(w.lost, func(l *lostNode) bool { return l.node == n && l.dead })
}
