package plan

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// plan has the node planned again.
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
	plan.Decision
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
			steps = append(steps, w.planNode(l)...)
		}
	}
	slices.SortFunc(steps, func(a, b step) int { return plan.InTurn(a.Decision, b.Decision) })
	for _, s := range steps {
		w.carryOut(s)
	}
}

// planNode plans for one node, notes what its pods wait for, and returns what is due.
func (w *world) planNode(l *lostNode) (due []step) {
	moved := true
	next := time.Time{}
	soon := func(t time.Time) {
		if t.After(w.now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	situation := w.situation(l)
	w.decideGangs(l, situation.Departures())
	situation.Gangs = w.gangs.Of(l.Name())
	for _, d := range plan.Plan(w.now, situation) {
		p := w.pods[d.Pod.UID]
		w.noteDecision(l, p, d)
		if d.Action == plan.Skip {
			continue
		}
		moved = false
		soon(d.At)
		soon(d.Latest)
		soon(d.Until)
		if d.Action.Requests() && !d.Stays {
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

// decideGangs takes in when the gangs of the node's pods leave, as far as these decide it.
func (w *world) decideGangs(l *lostNode, own map[plan.Gang]plan.Departure) {
	again := w.gangs.Report(w.now, l.Name(), own)
	for _, other := range w.lost {
		if slices.Contains(again, other.Name()) {
			w.plan(other)
		}
	}
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
	case plan.SurgeNow:
		w.surge(s, p)
	case plan.Return:
		w.putBack(s, p)
	case plan.End:
		p.fate.leaves(w, s.Decision)
		w.delete(p, s.Grace)
	case plan.Force:
		p.fate.leaves(w, s.Decision)
		p.fate.Outcome, p.fate.Reason = Forced, s.of.refused[p.UID]
		delete(s.of.refused, p.UID)
		w.delete(p, s.Grace)
	case plan.Evict:
		if len(p.budgets) == 1 && w.now.Before(p.budgets[0].free) {
			w.at(p.budgets[0].free, podsFirst, func() { w.plan(s.of) })
			return
		}
		refusal, by := w.evict(p)
		if refusal == "" {
			for _, b := range p.budgets {
				b.free = w.now.Add(perEviction)
			}
			delete(s.of.refused, p.UID)
			p.fate.leaves(w, s.Decision)
			w.delete(p, s.Grace)
			return
		}
		_, again := s.of.refused[p.UID]
		waitsFor := "two PDBs select it"
		if by != nil {
			waitsFor = "PDB " + by.Name
			if !again {
				by.report.Refused++
			}
		}
		p.fate.waits(w, waitsFor)
		if !again {
			w.plan(s.of)
		}
		s.of.refused[p.UID] = refusal
	}
}

// surge has the pod's ReplicaSet let it go.
func (w *world) surge(s step, p *pod) {
	next, err := plan.AsSurged(p.Pod, w.now)
	if err != nil {
		s.of.fixed[p.UID] = err.Error()
		return
	}
	from := p.controller
	p.fate.Surge = true
	p.controller = nil
	w.show(p, next)
	w.control(from)
}

// putBack undoes a surge.
func (w *world) putBack(s step, p *pod) {
	next := plan.AsReturned(p.Pod)
	s.of.fixed[p.UID] = s.Reason
	if s.GivesUp() {
		p.workload.ledger.GiveUp(s.Reason)
	}
	p.fate.Surge, p.fate.NoSurge = false, s.Reason
	if owner := metav1.GetControllerOf(next); owner != nil {
		p.controller = w.controllers[owner.UID]
	}
	w.show(p, next)
}

// react is how long a control loop takes to see a change and to act on it: the disruption controller,
// a ReplicaSet, the scheduler, the drain itself. None is slower than this when it has little to do.
const react = 100 * time.Millisecond

// What happens at the same time happens in this order.
const (
	podsFirst = iota
	thenControllers
	thenScheduler
	thenDrain
)

// agenda is what is to happen, the last first: most of what is added happens soon.
type agenda struct {
	entries []entry
	number  int
}

type entry struct {
	at     time.Time
	class  int
	number int
	run    func()
}

// at puts something on the agenda, not before now. Times are rounded up to react, so that what
// happens together is seen together.
func (w *world) at(t time.Time, class int, run func()) {
	t = interruption.Later(t, w.now)
	if over := t.Sub(w.in.At) % react; over > 0 {
		t = t.Add(react - over)
	}
	w.number++
	e := entry{t, class, w.number, run}
	i, _ := slices.BinarySearchFunc(w.entries, e, func(a, b entry) int { // the last first
		return cmp.Or(b.at.Compare(a.at), cmp.Compare(b.class, a.class), cmp.Compare(b.number, a.number))
	})
	w.entries = slices.Insert(w.entries, i, e)
}

// run plays until nothing more happens, or until the horizon.
func (w *world) run(horizon time.Time) {
	for len(w.entries) > 0 {
		last := len(w.entries) - 1
		next := w.entries[last]
		w.entries = w.entries[:last]
		if next.at.After(horizon) {
			break
		}
		w.now = next.at
		next.run()
	}
}
