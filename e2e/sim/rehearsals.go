package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
	"spot-handler/handler/nodes"
)

// Rehearsal is an interruption that an operator rehearses, as the command does: it writes the record, cancels what has
// no deadline, and takes back what nobody has taken up.
type Rehearsal struct {
	Node     string
	Kind     interruption.Kind
	At       time.Duration // from the beginning of the round
	Deadline time.Duration // from then on
	Release  bool          // the node is terminated at the end
	Cancel   time.Duration // when it is cancelled, after its beginning; 0: nobody does
}

// event is what the record says was rehearsed.
func (r Rehearsal) event() string { return "rehearsal/" + r.Node + r.At.String() }

// rehearsed are the kinds that can be.
var rehearsed = []interruption.Kind{
	interruption.SpotInterruption, interruption.SpotInterruption, interruption.RebalanceRecommendation,
	interruption.CapacityReservationInterruption, interruption.CapacityBlockExpiration, interruption.ScheduledEvent,
}

func (s *Scene) drawRehearsals(d Draw) {
	if !d.Chance(0.12, "rehearsals") {
		return
	}
	for i := range 1 + d.Int(2, "how many rehearsals") {
		name := fmt.Sprintf("rehearsal-%d", i)
		r := Rehearsal{
			Kind: Pick(d, rehearsed, name, "kind"), Deadline: d.Between(25*time.Second, 150*time.Second, name, "deadline"),
			Release: d.Chance(0.25, name, "release"),
		}
		if lost := Pick(d, s.Losses, name, "lost"); d.Chance(0.6, name, "is lost") {
			r.Node, r.At = lost.Node, max(10*time.Second, lost.At+d.Between(-90*time.Second, 20*time.Second, name, "before"))
		} else {
			r.Node, r.At = Pick(d, s.Nodes, name, "node").Name, d.Between(10*time.Second, 120*time.Second, name, "at")
		}
		if d.Chance(0.25, name, "cancelled") {
			r.Cancel = d.Between(500*time.Millisecond, r.Deadline, name, "cancel")
		}
		s.Rehearsals = append(s.Rehearsals, r)
	}
}

// rules are the operator's, as the command reads them from the daemon's flags.
func (w *World) rules(*corev1.Node, bool) (rules interruption.Rules, err error) {
	for _, flag := range w.Scene.Flags {
		name, value, _ := strings.Cut(flag, "=")
		switch name {
		case "--rebalance":
			rules.Rebalance = interruption.RebalancePolicy(value)
		case "--scheduled-lead":
			rules.ScheduledLead, err = time.ParseDuration(value)
		}
	}
	if slices.Contains(w.Scene.Flags, "--provisioner=none") {
		rules.Rebalance = interruption.RebalanceIgnore // nobody makes a replacement
	}
	return rules, err
}

// takenUpIn is how soon the daemon has to do something about the node.
const takenUpIn = 20 * time.Second

func (w *World) planRehearsal(r Rehearsal) {
	w.at(r.At, "rehearse "+r.event(), func() {
		if !w.rehearse(r) {
			return
		}
		ends := r.Cancel
		if r.Kind == interruption.RebalanceRecommendation && (ends == 0 || r.Deadline < ends) {
			ends = r.Deadline
		}
		if ends > 0 {
			w.after(ends, "cancel "+r.event(), func() { w.cancelRehearsal(r) })
		}
		w.after(takenUpIn, "take back "+r.event(), func() {
			if node, rec := w.rehearsing(r); node != nil && rec.Phase == interruption.Noticed && rec.Replacement == nil {
				w.note("operator: nobody has taken up the rehearsal of %s", r.Node)
				w.patchNode(node, marks.Undo(node, rec, nil, time.Now()))
			}
		})
	})
}

// rehearse begins a rehearsal, and reports whether it could.
func (w *World) rehearse(r Rehearsal) bool {
	node, now := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, r.Node), time.Now()
	if node == nil || node.DeletionTimestamp != nil || !isReady(node) {
		return false
	}
	n := interruption.Notice{
		Kind: r.Kind, Source: interruption.Rehearsal, EventID: r.event(), Release: r.Release,
		InstanceID: nodes.InstanceID(node), NodeName: r.Node, Noticed: now, Received: now,
	}
	switch r.Kind {
	case interruption.SpotInterruption, interruption.CapacityReservationInterruption, interruption.CapacityBlockExpiration:
		n.Action = interruption.ActionTerminate
	case interruption.ScheduledEvent:
		n.Action = interruption.ActionRetirement
	}
	if r.Kind != interruption.RebalanceRecommendation {
		n.Deadline = now.Add(r.Deadline).Truncate(time.Second)
	}
	j := interruption.Judge(nodes.Case(node, n, w.rules, now))
	w.note("operator: rehearses %s of %s, release %t: %s, %s", r.Kind, r.Node, r.Release, j.Verdict, j.Reason)
	if j.Verdict != interruption.Accepted {
		return false
	}
	w.judge.rehearsed(r)
	w.patchNode(node, marks.Accept(node, j.Record))
	return true
}

func (w *World) patchNode(node *corev1.Node, patch marks.Patch) {
	if f := w.Patch(memapi.Nodes, node.Name, patch.Type, patch.Data, byOperator); f != nil {
		w.note("operator: patch node %s: %s", node.Name, f.Message)
	}
}

// rehearsing is the Node while its record is that of the rehearsal; nil: it is not.
func (w *World) rehearsing(r Rehearsal) (*corev1.Node, interruption.Record) {
	node := memapi.Get[*corev1.Node](w.Server, memapi.Nodes, r.Node)
	if node == nil {
		return nil, interruption.Record{}
	}
	rec, has := recordOf(node)
	if !has || !rec.Rehearsed() || rec.Event != r.event() {
		return nil, rec
	}
	return node, rec
}

func (w *World) cancelRehearsal(r Rehearsal) {
	node, rec := w.rehearsing(r)
	if node == nil || rec.Phase == interruption.Released {
		return
	}
	w.note("operator: cancels the rehearsal of %s", r.Node)
	changed := node.DeepCopy()
	changed.Annotations[interruption.CancelAnnotation] = "true"
	w.Put(memapi.Nodes, changed, byOperator)
	since := w.since()
	w.after(cancelTakes, "cancelled "+r.event(), func() { w.judge.judgeRehearsal(r, since, "was cancelled") })
}

// rehearsed: an operator begins a rehearsal. What the daemon does on the node then has a reason, but is nobody's
// announcement.
func (j *judge) rehearsed(r Rehearsal) {
	j.life(r.Node).rehearsed = time.Now()
	if r.Kind == interruption.RebalanceRecommendation {
		return // it is cancelled
	}
	since := j.w.since()
	j.w.after(r.Deadline+restoredIn, "judge "+r.event(), func() { j.judgeRehearsal(r, since, "was to be over") })
}

// restoredIn is how long after its deadline a node is in service again: its result stands for 5 s, and an eviction that
// is under way is waited for.
const restoredIn = cancelTakes

// judgeRehearsal: nothing is left of a rehearsal that was cancelled, or whose deadline has passed, unless the node was
// to be terminated then.
func (j *judge) judgeRehearsal(r Rehearsal, since time.Duration, what string) {
	node, rec := j.w.rehearsing(r)
	if node == nil || node.DeletionTimestamp != nil || j.w.disturbed(since-recovery, j.w.since()) || j.hung() {
		return
	}
	if r.Release && rec.Phase.Over() { // whether somebody terminates it is another matter
		return
	}
	j.breaks(takenBack, "node %s: its rehearsal, since %.3f, %s, and is %s",
		r.Node, since.Seconds(), what, summary(rec, true))
}

// mayRelease reports whether the node may be terminated, as far as its record says: it has none, or that of a real
// interruption, or of a rehearsal that is to end so.
func mayRelease(node *corev1.Node) bool {
	rec, has := recordOf(node)
	return !has || !rec.Rehearsed() || rec.Release
}

// judgeRehearsed: once nothing is left of a rehearsal, nobody is evicted for it. One that was cancelled or taken back
// can have evictions that are under way.
func (j *judge) judgeRehearsed(c memapi.Change, pod *corev1.Pod, life *nodeLife) {
	node := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, pod.Spec.NodeName)
	if node == nil {
		return
	}
	if _, has := recordOf(node); !has && time.Since(life.restored) > recovery {
		j.breaks(noReason, "%s ends pod %s, and the rehearsal of %s was over at %.3f",
			c.By, c.Key, node.Name, life.restored.Sub(j.w.began).Seconds())
	}
}
