package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// beginsAfter is how long after the notice the drain begins: the record is written and seen, and a
// replacement is asked for.
const beginsAfter = 500 * time.Millisecond

// lastRound is how long what is due when the drain ends takes to be planned and carried out, which still
// counts.
const lastRound = 2 * react

// announce puts the course of every lost node on the agenda.
func (w *world) announce() {
	for _, l := range w.lost {
		w.at(l.Noticed, podsFirst, func() { l.closed = true })
		w.at(l.Noticed.Add(beginsAfter), podsFirst, func() { w.begin(l) })
		if !l.Deadline.IsZero() {
			w.at(l.end.Add(lastRound), thenDrain, func() { w.end(l) })
			w.at(l.Deadline, thenDrain, func() { w.terminate(l) })
		}
	}
}

// begin starts the drain, and has the replacement boot.
func (w *world) begin(l *lostNode) {
	if l.over {
		return
	}
	switch l.Capacity {
	case plan.ReadyCapacity:
		l.ready = w.now
	case plan.PendingCapacity:
		w.at(l.Noticed.Add(w.in.Assumptions.Boot.Duration()), podsFirst, func() { w.boots(l) })
	}
	w.apply(plan.Set{Node: l.Name(), Wanted: plan.Wanted{NodeState: l.state(), Goal: plan.Drain}})
}

// boots makes the replacement a node that takes pods. It runs the lost node's DaemonSets too.
func (w *world) boots(l *lostNode) {
	l.ready, l.Capacity = w.now, plan.ReadyCapacity
	if l.Becomes != nil {
		n := w.addNode(l.Becomes)
		n.closed = false
		for _, p := range l.node.pods {
			if plan.IsDaemon(p.Pod) {
				c := *p.Pod
				c.UID += types.UID("-on-" + n.Name)
				n.place(&pod{Pod: &c})
			}
		}
	}
	if !l.over {
		w.apply(plan.Set{Node: l.Name(), Wanted: plan.Wanted{NodeState: l.state(), Goal: plan.Drain}})
	}
	w.schedule()
}

// Name is the Node's.
func (l *lostNode) Name() string { return l.Lost.Node.Name }

// drained ends the drain of an empty node.
func (w *world) drained(l *lostNode) {
	l.over = true
	l.report.Empty, l.report.Ended = w.offsetOf(w.now), w.offsetOf(w.now)
	w.apply(plan.Remove{Node: l.Name()})
}

// end ends the drain of a node that is not empty when time is up.
func (w *world) end(l *lostNode) {
	if l.over {
		return
	}
	l.over = true
	l.report.Ended = w.offsetOf(w.now)
	w.apply(plan.Remove{Node: l.Name()})
	for _, p := range l.pods {
		if p.fate == nil || p.fate.Outcome == Stays {
			continue
		}
		switch {
		case p.fate.Leaves == nil && p.DeletionTimestamp == nil:
			p.fate.waits(w, "")
			p.fate.Outcome, p.fate.Reason = Left, cmp.Or(l.refused[p.UID], "its eviction was never tried")
			if l.Deleted {
				w.deletedWithNode(l, p)
			}
		case p.fate.Outcome == Graceful:
			p.fate.Outcome, p.fate.Reason = Truncated, "it had not ended when the drain did"
		}
	}
}

// deletedWithNode has Karpenter delete a pod that no eviction has reached, once its grace period, or
// what is left of it, has to begin: not in the record, where it counts as left.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/node/termination/terminator/terminator.go
func (w *world) deletedWithNode(l *lostNode, p *pod) {
	p.fate.Reason += "; Karpenter deletes it just before the node ends, with what is left of its grace period"
	at := interruption.Later(l.Deadline.Add(-plan.Grace(p.Pod)), l.end)
	p.fate.Leaves = w.offsetOf(at)
	w.at(at, podsFirst, func() {
		w.delete(p, new(max(1, int64(l.Deadline.Sub(at)/time.Second))))
	})
}

// terminate has EC2 terminate the node, with all that is on it.
func (w *world) terminate(l *lostNode) {
	l.dead, l.closed = true, true
	for _, uid := range slices.Sorted(maps.Keys(l.pods)) {
		w.gone(l.pods[uid])
	}
	w.schedule() // a strict spread counts the node no more
}

// fate is what becomes of a pod of a lost node.
type fate struct {
	Pod
	waitsFor string
	since    time.Time
	longest  time.Duration
}

// noteDecision notes what is planned for a pod. Those that DaemonSets and kubelets made, and finished ones,
// have none.
func (w *world) noteDecision(l *lostNode, p *pod, d plan.Decision) {
	if p.fate == nil {
		if d.Action == plan.Skip && (plan.IsDaemon(p.Pod) || p.controller == nil && p.workload == nil && len(p.OwnerReferences) > 0) {
			return
		}
		p.fate = &fate{Pod: Pod{
			Namespace: p.Namespace, Name: p.Name, Workload: WorkloadOf(p.Pod), Node: l.Name(),
			Grace: Seconds(plan.Grace(p.Pod).Seconds()), Surge: d.Surge, NoSurge: d.NoSurge, Outcome: Graceful,
		}}
		if !d.At.IsZero() {
			p.fate.EvictBy = w.offsetOf(d.At)
		}
		if p.DeletionTimestamp != nil && plan.CutShort(p.Pod) {
			p.fate.Outcome, p.fate.Reason = Truncated, "it is ending with less than its grace period already"
		}
		if !p.fresh && !l.Underway { // else nobody has asked about it
			w.fates = append(w.fates, p.fate)
		}
	}
	switch {
	case d.Action == plan.Skip, d.Stays:
		p.fate.Outcome, p.fate.Reason = Stays, d.Reason
	case d.Action == plan.Hold:
		p.fate.waits(w, d.Reason)
	case d.Action == plan.Wait:
		p.fate.waits(w, "")
	}
	if p.fate.Outcome == Stays && d.Moves() {
		p.fate.Outcome, p.fate.Reason = Graceful, ""
	}
}

// waits notes what the pod waits for from now on; "" is nothing. What it waits for longest is shown.
func (s *fate) waits(w *world, what string) {
	if what == s.waitsFor {
		return
	}
	if took := w.now.Sub(s.since); s.waitsFor != "" && took > s.longest && took >= worthShowing {
		s.longest, s.WaitsFor = took, s.waitsFor
	}
	s.waitsFor, s.since = what, w.now
}

// worthShowing is how long a pod has to wait for something to have waited for it.
const worthShowing = 500 * time.Millisecond

// leaves notes that the pod's eviction or deletion begins.
func (s *fate) leaves(w *world, d plan.Decision) {
	s.waits(w, "")
	s.Leaves = w.offsetOf(w.now)
	if d.Grace != nil {
		s.Outcome = Truncated
		s.Reason = fmt.Sprintf("its grace period of %d s does not fit: %d s are left", int(s.Grace), *d.Grace)
	}
}
