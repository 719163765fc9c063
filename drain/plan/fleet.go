package plan

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// Fleet is all nodes that are being drained, with all that is known around them and with what is under way.
// [Fleet.Apply] takes in what was seen or answered, and [Fleet.Next] returns what to do now and when to
// ask again. Both only compute. It is not safe for concurrent use.
//
// A pod that has to leave waits in a group with those that need the same: a turn to surge, a replacement
// pod, its disruption budget, or nothing. The most urgent pod of all goes first whose group lets one
// go. It is decided about again in that moment, as its deadline, its node or its Deployment might have
// changed since its node was planned.
type Fleet struct {
	policy Policy
	random *rand.Rand
	now    time.Time
	todo   Todo

	nodes  map[string]*node
	newest time.Time // when the last of them began
	gangs  *gangs

	users       map[Subject]map[*node]struct{} // of what is watched
	budgets     map[string]*budgets            // by namespace
	deployments map[types.NamespacedName]*deployment
	lookups     map[Subject]*lookup
	attached    attachments

	waves      Waves
	wavesOld   bool      // something has happened since they were worked out
	wavesAt    time.Time // when they can be worked out again
	wavesAgain time.Time // when they become old even if nothing happens; zero: never
	wavesFloor time.Time // when they can be at the earliest, whatever happens: otherwise nothing else would get done

	groups   map[groupKey]*group
	underWay map[types.UID]bool               // the pods with a request
	waiting  map[string]map[*tracked]struct{} // for their next attempt, by namespace
	limiter  *limiter
	took     time.Duration // what requests have taken of late

	plans    agenda[*node]
	recounts agenda[types.NamespacedName]
	retries  agenda[*tracked]
	relook   agenda[Subject]
	returns  agenda[*node]

	sent    map[types.UID]exit // pods that were sent away from nodes that are not drained any more
	forgets agenda[types.UID]

	gatheredUntil time.Time // see gatheredAt
	gatheredFor   time.Time // when that was worked out
}

// NewFleet returns one without nodes. So many requests are under way at once, not counting those that have
// waited seconds for an answer. The seed decides how far apart the attempts of refused pods are.
func NewFleet(policy Policy, atOnce int, seed uint64) *Fleet {
	return &Fleet{
		policy:      policy,
		random:      rand.New(rand.NewPCG(seed, 0)),
		nodes:       map[string]*node{},
		gangs:       newGangs(),
		users:       map[Subject]map[*node]struct{}{},
		budgets:     map[string]*budgets{},
		deployments: map[types.NamespacedName]*deployment{},
		lookups:     map[Subject]*lookup{},
		groups:      map[groupKey]*group{},
		underWay:    map[types.UID]bool{},
		waiting:     map[string]map[*tracked]struct{}{},
		limiter:     newLimiter(atOnce),
		plans:       newAgenda(byNode),
		recounts:    newAgenda(byName),
		retries:     newAgenda(byPod),
		relook:      newAgenda(bySubject),
		returns:     newAgenda(byNode),
		sent:        map[types.UID]exit{},
		forgets:     newAgenda(cmp.Compare[types.UID]),
	}
}

// Event is something that was seen or answered.
type Event interface{ apply(*Fleet) }

// Todo is what to do now.
type Todo struct {
	Unwatch, Watch []Subject // report nothing more of these, and what is seen of those, in this order
	LookUp         []Subject // reply with LookedUp or LookUpFailed
	Requests       []Request // reply with Replied
	PutBack        []string  // nodes whose surged pods go back into their ReplicaSets: reply with PutBack
	Halt           []string  // the nodes whose requests are given no more time than EvictTimeout
	Planned        []string  // nodes that have their first plan, by which pods leave
	Changed        []string  // nodes of whose drain anything might have changed
	Reports        []Report  // for people
	Wake           time.Time // when to ask again, if nothing happens before; zero is never
}

// ReportKind is what is reported.
type ReportKind string

const (
	EvictionBlocked       ReportKind = "blocked"     // a disruption budget has held the pod back for seconds
	EvictionForced        ReportKind = "forced"      // the pod was deleted past its disruption budget
	AnnotationMeaningless ReportKind = "meaningless" // the pod, or its namespace, asks for something that nobody knows
	Surged                ReportKind = "surged"
	NotSurged             ReportKind = "not surged" // its surge was refused; it is held instead
	NotSurgedEither       ReportKind = "not surged either"
	Returned              ReportKind = "returned" // to its ReplicaSet
	Ended                 ReportKind = "ended"    // as its ReplicaSet would have ended it
	TriedAgain            ReportKind = "tried again"
	SurgesGivenUp         ReportKind = "surges given up"
)

// Report is something that people want to know.
type Report struct {
	Kind        ReportKind
	Node        string
	Pod         *corev1.Pod
	Deployment  types.NamespacedName
	Action      Action // that was requested
	Attempt     int
	Reason      string
	OfNamespace bool // the pod's namespace asks for it
}

// Left is a pod that is still on its node and was not sent away.
type Left struct {
	Pod    *corev1.Pod
	Reason string
}

// Status is how far a node's drain has come.
type Status struct {
	View
	// Total is how many pods had to leave since the drain began.
	Total int
	// Begun: some pod has been evicted or is to be evicted now, or the replacement is ready
	// for the replacement pods of surged pods.
	Begun bool
	// Moved: every pod that had to leave has left, and none stays.
	Moved bool
	// Due: some pod is to be evicted or deleted as soon as it can be, for the first time or again.
	Due bool
	// Refusal is why a pod has been held back for seconds, in the API server's words.
	Refusal string
	// Volumes is how many are still attached for pods that have left.
	Volumes int
	// Done: they have left, and their volumes are detached.
	Done bool
	// Next is when the plan changes by the clock alone; zero if it does not.
	Next time.Time
	// Pods counts what would have become of every pod if the node ended now: those that are still on it and were
	// not sent away are left, and those that are terminating had less than their grace period.
	Pods interruption.Pods
	// Left are those that would be left.
	Left []Left
	// Canceled is set once nothing is under way any more after [Cancel]. Of the fields above, only Pods and Left
	// are set then.
	Canceled *Canceled
}

// Apply takes in what has happened.
func (f *Fleet) Apply(now time.Time, e Event) {
	f.now = now
	e.apply(f)
}

// plansAtOnce is how many nodes are planned before requests are made again: in a burst, thousands are to be
// planned.
const plansAtOnce = 64

// Next returns what to do now. After the same events at the same times it returns the same, in the same order.
func (f *Fleet) Next(now time.Time) Todo {
	f.now = now
	for uid, ok := f.forgets.take(now); ok; uid, ok = f.forgets.take(now) {
		delete(f.sent, uid)
	}
	for s, ok := f.relook.take(now); ok; s, ok = f.relook.take(now) {
		f.lookAgain(s)
	}
	for name, ok := f.recounts.take(now); ok; name, ok = f.recounts.take(now) {
		f.count(f.deployments[name])
	}
	if !f.wavesAgain.IsZero() && !now.Before(f.wavesAgain) {
		f.wavesAgain = time.Time{}
		f.wavesStale()
	}
	f.planWaves()
	for range plansAtOnce {
		n, ok := f.plans.take(now)
		if !ok {
			break
		}
		if n.planned && n.listed {
			f.replan(n)
			f.changed(n)
			f.wavesOld = f.wavesOld || n.draining
		}
	}
	for n, ok := f.returns.take(now); ok; n, ok = f.returns.take(now) {
		n.returning = true
		f.todo.PutBack = append(f.todo.PutBack, n.name)
	}
	for t, ok := f.retries.take(now); ok; t, ok = f.retries.take(now) {
		f.wake(t)
	}
	wake := f.send()
	if f.wavesOld {
		wake = interruption.Earlier(wake, f.wavesAt)
	}
	wake = interruption.Earlier(wake, f.wavesAgain)
	todo := f.todo
	f.todo = Todo{}
	for _, list := range [][]Subject{todo.Unwatch, todo.Watch, todo.LookUp} {
		slices.SortFunc(list, bySubject)
	}
	slices.Sort(todo.Changed)
	todo.Changed = slices.Compact(todo.Changed)
	todo.Wake = earliest(wake, f.plans.next(), f.recounts.next(), f.retries.next(), f.relook.next(), f.returns.next())
	return todo
}

func (f *Fleet) report(r Report) { f.todo.Reports = append(f.todo.Reports, r) }

func (f *Fleet) changed(n *node) { f.todo.Changed = append(f.todo.Changed, n.name) }

// Wanted is what is to become of a node's pods, and how its interruption stands.
type Wanted struct {
	NodeState
	Goal Goal
}

// Goal is what is done about a node's pods.
type Goal int

const (
	// Look: they are watched and planned for. None is moved, and none that is already leaving is stopped.
	Look Goal = iota
	// Drain: they leave as planned.
	Drain
	// Cancel: nothing more is begun, and surged pods go back into their ReplicaSets. That stands until the node is
	// removed.
	Cancel
)

// Set says what is wanted of a node from now on.
type Set struct {
	Node string
	Wanted
}

func (e Set) apply(f *Fleet) {
	n := f.nodeFor(e.Node)
	switch e.Goal {
	case Look:
		if !n.draining && (!n.planned || n.state != e.NodeState) {
			n.state, n.planned, n.fresh = e.NodeState, true, false
		}
	case Drain:
		f.drain(n, e.NodeState)
	case Cancel:
		f.cancel(n)
	}
}

// drain has the pods of a node leave, or takes in how its interruption stands now.
func (f *Fleet) drain(n *node, state NodeState) {
	switch {
	case state.Capacity != ReadyCapacity:
		n.ready = time.Time{}
	case n.ready.IsZero():
		n.ready = f.now
	}
	if n.draining && n.state == state {
		return
	}
	if n.draining && !interruption.Earlier(n.state.Deadline, state.Deadline).Equal(n.state.Deadline) {
		f.todo.Halt = append(f.todo.Halt, n.name) // its requests began when there was more time
	}
	f.wavesStale()
	n.fresh = n.fresh && n.state == state
	n.state, n.planned, n.draining = state, true, true
	if n.listed {
		f.plans.sooner(n, f.now)
	}
}

// cancel has nothing more begun for a node.
func (f *Fleet) cancel(n *node) {
	if n.canceled {
		return
	}
	n.canceled = true
	f.todo.Halt = append(f.todo.Halt, n.name)
	for _, t := range n.tracked {
		f.place(t)
	}
	f.reportGangs(n, nil)
	f.putBack(n)
}

// putBack has the surged pods of a cancelled node go back into their ReplicaSets once nothing is under way. The
// API server is asked which they are: the watch might not have shown yet which were surged a moment ago.
func (f *Fleet) putBack(n *node) {
	if n.canceled && n.listed && n.underWay == 0 && !n.returning && !n.returned {
		f.returns.sooner(n, f.now)
	}
}

// putBackRetry is how long after a failure it is tried again.
const putBackRetry = time.Second

// PutBack is the reply to [Todo.PutBack].
type PutBack struct {
	Node   string
	Failed bool // it is tried again
}

func (e PutBack) apply(f *Fleet) {
	n := f.nodes[e.Node]
	switch {
	case n == nil || !n.returning:
		return
	case e.Failed:
		f.returns.set(n, f.now.Add(putBackRetry))
	default:
		n.returned = true
		f.changed(n)
	}
	n.returning = false
}

// nodeFor is a node that is known from now on.
func (f *Fleet) nodeFor(name string) *node {
	n := f.nodes[name]
	if n == nil {
		n = newNode(name, f.now)
		f.nodes[name], f.newest = n, f.now
		f.uses(n, podsOf(name))
	}
	return n
}

// Remove forgets a node, whatever has become of its drain.
type Remove struct{ Node string }

func (e Remove) apply(f *Fleet) {
	n := f.nodes[e.Node]
	if n == nil {
		return
	}
	n.canceled = true
	for uid, t := range n.tracked {
		f.wait(t, time.Time{})
		f.place(t)
		if t.sent != notSent && !t.gone {
			f.remember(uid, t.sent)
		}
	}
	f.plans.drop(n)
	f.returns.drop(n)
	f.leave(n)
	f.reportGangs(n, nil)
	delete(f.nodes, e.Node)
	f.todo.Halt = append(f.todo.Halt, n.name)
}

// sentFor is how long it is known of a pod that it was sent away from a node that is not drained any more. If
// the node is drained again, its watch might begin with a list from before.
const sentFor = time.Minute

func (f *Fleet) remember(pod types.UID, by exit) {
	f.sent[pod] = max(f.sent[pod], by)
	f.forgets.set(pod, f.now.Add(sentFor))
}

// stale reports whether the node has to be planned again now.
func (f *Fleet) stale(n *node) bool {
	at, due := f.plans.at[n]
	return !n.fresh || due && !f.now.Before(at) || !n.until.IsZero() && !f.now.Before(n.until)
}

// Status is how far a node's drain has come; false until its pods are known, and enough of what the plan for
// them depends on.
func (f *Fleet) Status(now time.Time, name string) (Status, bool) {
	f.now = now
	n := f.nodes[name]
	switch {
	case n == nil || !n.listed || !n.planned && !n.canceled:
		return Status{}, false
	case n.canceled:
		n.status = Status{Canceled: f.leftOver(n)}
	case !n.draining:
		if f.stale(n) {
			f.plans.drop(n)
			f.replan(n)
		}
		n.status = Status{View: n.view}
	case f.stale(n) || !n.tracking:
		f.planWaves()
		f.plans.drop(n)
		f.replan(n)
		f.wavesOld = true
	}
	status := n.status
	status.Pods, status.Left = f.result(n)
	return status, n.draining || n.canceled || n.complete || now.Sub(n.known) >= lookFor
}

// Canceled is what a cancelled drain leaves.
type Canceled struct {
	interruption.Pods // that had to leave; none counts as left

	// Staying are the pods that are on the node, except those that are terminating.
	Staying []*corev1.Pod
}

// leftOver is nil while something is still under way.
func (f *Fleet) leftOver(n *node) *Canceled {
	if !n.returned {
		return nil
	}
	pods, _ := f.result(n)
	pods.Total, pods.Left = pods.Total-pods.Left, 0
	left := &Canceled{Pods: pods}
	for _, pod := range n.list() {
		if pod.DeletionTimestamp == nil {
			left.Staying = append(left.Staying, pod)
		}
	}
	slices.SortFunc(left.Staying, byUrgency)
	return left
}
