package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
)

// beginsAfter is how long after the notice the first plan is made: the record is written and seen,
// and the node's pods, their budgets and their Deployments are read.
const beginsAfter = 500 * time.Millisecond

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

// Name is the Node's.
func (l *lostNode) Name() string { return l.Lost.Node.Name }

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
			if l.Deleted {
				w.deletedWithNode(l, p)
			}
		case p.story.Outcome == Graceful:
			p.story.Outcome, p.story.Reason = Truncated, "it had not ended when the drain did"
		}
	}
}

// deletedWithNode has Karpenter delete a pod that no eviction has reached, once its grace period, or
// what is left of it, has to begin: not in the record, where it counts as left.
// https://github.com/kubernetes-sigs/karpenter/blob/v1.14.1/pkg/controllers/node/termination/terminator/terminator.go
func (w *world) deletedWithNode(l *lostNode, p *pod) {
	p.story.Reason += "; Karpenter deletes it just before the node ends, with what is left of its grace period"
	at := l.deadline.Add(-drain.Grace(p.Pod))
	if at.Before(w.now) {
		at = w.now
	}
	p.story.Leaves = w.offsetOf(at)
	w.at(at, podsFirst, func() {
		seconds := max(1, int64(l.deadline.Sub(at)/time.Second))
		w.delete(p, &seconds)
	})
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
