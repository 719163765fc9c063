package plan

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
)

// The drain that is played is the daemon's own [plan.Fleet]. Where a Drainer asks the cluster, it asks the
// world, and where a Drainer waits, the agenda goes on:
//
//	tell, Replied ──► Fleet ──► watches and look-ups, which are answered at once
//	                    ├─────► requests, which the API server answers a moment later
//	                    └─────► what the pods wait for, and when to ask again

// answered is how long the API server takes to answer a request of the drain.
const answered = 20 * time.Millisecond

// newFleet has the same seed each time: the same input has the same forecast.
func newFleet(policy plan.Policy) *plan.Fleet { return plan.NewFleet(policy, drain.RequestsAtOnce, 0) }

// state is how the node's interruption stands.
func (l *lostNode) state() plan.NodeState {
	return plan.NodeState{
		Taint:    marks.Taint(interruption.Record{Kind: l.Kind}),
		Since:    l.Noticed,
		Deadline: l.Deadline,
		Capacity: l.Capacity,
	}
}

// apply has the drain take in what has happened, and asks it soon what to do.
func (w *world) apply(e plan.Event) {
	w.fleet.Apply(w.now, e)
	w.ask(w.now)
}

// ask asks the drain at that time what to do, if it is not asked before.
func (w *world) ask(at time.Time) {
	at = interruption.Later(at, w.now)
	if !w.asks.IsZero() && !at.Before(w.asks) {
		return
	}
	w.asks = at
	w.exactly(at, thenDrain, func() {
		if w.asks.Equal(at) {
			w.asks = time.Time{}
		}
		w.carryOut(w.fleet.Next(w.now))
	})
}

// carryOut does what the drain wants.
func (w *world) carryOut(todo plan.Todo) {
	for _, s := range todo.Unwatch {
		delete(w.watched, s)
	}
	for _, s := range todo.Watch {
		w.watched[s] = true
		w.list(s)
	}
	for _, s := range todo.LookUp {
		w.lookUp(s)
	}
	for _, r := range todo.Requests {
		w.exactly(w.now.Add(answered), podsFirst, func() { w.answer(r) })
	}
	for _, name := range todo.Changed {
		if l := w.nodes[name].lost; !l.over {
			w.look(l)
		}
	}
	if !todo.Wake.IsZero() {
		w.ask(interruption.Later(todo.Wake, w.now.Add(time.Millisecond)))
	}
}

// look takes in how far the node's drain has come.
func (w *world) look(l *lostNode) {
	status, known := w.fleet.Status(w.now, l.Name())
	if !known {
		return
	}
	for _, d := range status.Plan {
		if p := w.pods[d.Pod.UID]; p != nil {
			w.noteDecision(l, p, d)
		}
	}
	switch {
	case status.Done:
		w.drained(l)
	case status.Moved && !l.detaching:
		l.detaching = true
		w.at(w.now.Add(w.in.Assumptions.Detach.Duration()), podsFirst, func() { w.detach(l) })
	}
}

// list shows the drain all of a subject that there is.
func (w *world) list(s plan.Subject) {
	switch s.Kind {
	case plan.PodsOfNode:
		l := w.nodes[s.Name.Name].lost
		for _, uid := range slices.Sorted(maps.Keys(l.pods)) {
			w.tell(l.pods[uid])
		}
		w.apply(plan.PodsListed{Node: l.Name()})
	case plan.Budgets:
		for _, b := range w.budgets[s.Name.Namespace] {
			w.apply(plan.BudgetSeen{After: b.PodDisruptionBudget})
		}
		w.apply(plan.BudgetsListed{Namespace: s.Name.Namespace})
	case plan.DeploymentOfPod:
		w.apply(plan.DeploymentSeen{Name: s.Name, Deployment: w.in.Deployments[s.Name]})
		if of := w.deployments[s.Name]; of != nil {
			for _, uid := range slices.Sorted(maps.Keys(of.pods)) {
				w.tell(of.pods[uid])
			}
		}
		w.apply(plan.ReplicasListed{Name: s.Name})
	case plan.Attachments:
		for _, l := range w.lost {
			w.attach(l, false)
		}
		w.apply(plan.AttachmentsListed{})
	}
}

// tell shows the drain how a pod is now, where it is watched.
func (w *world) tell(p *pod) {
	now := p.Pod
	if w.pods[p.UID] != p {
		now = nil // it is gone
	}
	if p.node != nil && p.node.lost != nil && w.watched[plan.Subject{Kind: plan.PodsOfNode, Name: types.NamespacedName{Name: p.node.Name}}] {
		w.apply(plan.PodSeen{Node: p.node.Name, Before: p.seen, After: now})
		p.seen = now
	}
	if of := p.workload; of != nil && w.watched[plan.Subject{Kind: plan.DeploymentOfPod, Name: of.of}] {
		before := p.member
		p.member = nil
		if now != nil {
			p.member = plan.ReplicaOf(now)
		}
		w.apply(plan.ReplicaSeen{Name: of.of, Before: before, After: p.member})
	}
}

// lookUp answers what was read of a namespace or of a claim. A claim that was not read stays unknown.
func (w *world) lookUp(s plan.Subject) {
	switch s.Kind {
	case plan.PreferencesOfNamespace:
		w.apply(plan.LookedUp{Subject: s, Value: w.in.Namespaces[s.Name.Namespace]})
	case plan.ConstraintsOfNamespace:
		w.apply(plan.LookedUp{Subject: s, Value: w.in.Constraints[s.Name.Namespace]})
	case plan.ClaimOfPod:
		if shared, known := w.in.Shared[s.Name]; known {
			w.apply(plan.LookedUp{Subject: s, Value: plan.Claim{Shared: shared}})
		}
	}
}

// attach shows the volumes that are attached to the node, or that they no longer are.
func (w *world) attach(l *lostNode, gone bool) {
	for i := range w.in.Attached[l.Name()] {
		volume := fmt.Sprintf("%s-%d", l.Name(), i)
		w.apply(plan.AttachmentSeen{Name: volume, Node: l.Name(), Volume: volume, Gone: gone})
	}
}

// detach detaches the node's volumes: its pods have gone.
func (w *world) detach(l *lostNode) {
	if !l.over {
		w.attach(l, true)
	}
}

// answer is the API server's to a request of the drain.
func (w *world) answer(r plan.Request) {
	reply := plan.Reply{Outcome: plan.PodGone, Status: http.StatusNotFound}
	if p := w.pods[r.Pod.UID]; p != nil {
		reply = w.request(w.nodes[r.Node].lost, p, r.Decision)
	}
	w.apply(plan.Replied{Request: r, Did: r.Action, Reply: reply})
}

// request does what is asked for, or refuses it.
func (w *world) request(l *lostNode, p *pod, d plan.Decision) plan.Reply {
	accepted := plan.Reply{Outcome: plan.Accepted, Status: http.StatusCreated}
	if p.DeletionTimestamp != nil {
		return accepted
	}
	if p.fate == nil {
		w.noteDecision(l, p, d)
	}
	switch d.Action {
	case plan.SurgeNow:
		w.surge(p)
		return accepted
	case plan.Return:
		w.putBack(p, d)
		return accepted
	case plan.Force:
		p.fate.leaves(w, d)
		p.fate.Outcome, p.fate.Reason = Forced, l.refused[p.UID]
	case plan.Evict:
		refusal, by := w.evict(p)
		if refusal != "" {
			return w.refuse(l, p, refusal, by)
		}
		if by != nil {
			by.charge(w)
		}
		p.fate.leaves(w, d)
	default:
		p.fate.leaves(w, d)
	}
	delete(l.refused, p.UID)
	w.delete(p, d.Grace)
	return accepted
}

// refuse refuses an eviction.
func (w *world) refuse(l *lostNode, p *pod, why string, by *budget) plan.Reply {
	_, again := l.refused[p.UID]
	l.refused[p.UID] = why
	if by == nil {
		p.fate.waits(w, "two PDBs select it")
		return plan.Reply{Outcome: plan.Refused, Status: http.StatusInternalServerError, Reason: why}
	}
	p.fate.waits(w, "PDB "+by.Name)
	if !again {
		by.report.Refused++
	}
	return plan.Reply{Outcome: plan.Refused, Status: http.StatusTooManyRequests, Reason: why, OfBudget: true}
}

// surge has the pod's ReplicaSet let it go.
func (w *world) surge(p *pod) {
	next := plan.AsSurged(p.Pod, w.now)
	from := p.controller
	p.fate.Surge = true
	p.controller = nil
	w.show(p, next)
	w.control(from)
}

// putBack undoes a surge.
func (w *world) putBack(p *pod, d plan.Decision) {
	next := plan.AsReturned(p.Pod)
	p.fate.Surge, p.fate.NoSurge = false, d.Reason
	if owner := metav1.GetControllerOf(next); owner != nil {
		p.controller = w.controllers[owner.UID]
	}
	w.show(p, next)
}
