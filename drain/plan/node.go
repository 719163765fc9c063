package plan

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

// node is one that is being drained, or whose drain is being prepared.
type node struct {
	name     string
	began    time.Time
	state    NodeState
	planned  bool // it has a state to plan with
	draining bool // its pods can leave
	ready    time.Time

	canceled  bool // nothing more is begun
	returning bool // its surged pods are being put back
	returned  bool // they are

	listed  bool // its pods have been seen
	pods    map[types.UID]*corev1.Pod
	came    map[types.UID]time.Time // of pods that have come since the first list
	answers map[types.UID]When      // of pods to notices
	uses    map[Subject]struct{}

	known    time.Time // when it was first planned
	sit      Situation // that it was last planned with
	view     View
	complete bool      // all was known that the view depends on
	fresh    bool      // nothing has happened since the view was made
	until    time.Time // when the view changes by the clock alone; zero if it does not
	status   Status
	tracking bool // its pods wait for what is to be requested for them

	tracked  map[types.UID]*tracked
	underWay int // requests
	begun    bool
	emptied  time.Time       // when the last pod had gone
	reported map[string]bool // who asks for something meaningless
	refused  map[types.UID]bool
	fixed    map[types.UID]string
}

func byNode(a, b *node) int { return cmp.Compare(a.name, b.name) }

func newNode(name string, now time.Time) *node {
	return &node{
		name:     name,
		began:    now,
		pods:     map[types.UID]*corev1.Pod{},
		came:     map[types.UID]time.Time{},
		answers:  map[types.UID]When{},
		uses:     map[Subject]struct{}{},
		tracked:  map[types.UID]*tracked{},
		reported: map[string]bool{},
		refused:  map[types.UID]bool{},
		fixed:    map[types.UID]string{},
	}
}

// PodsListed is that all pods of a node have been seen.
type PodsListed struct{ Node string }

func (e PodsListed) apply(f *Fleet) {
	if n := f.nodes[e.Node]; n != nil {
		n.listed = true
		f.plans.sooner(n, f.now)
		f.changed(n)
		f.putBack(n)
	}
}

// PodSeen is that a pod is on a node, has changed there or is gone from it.
type PodSeen struct {
	Node          string
	Before, After *corev1.Pod
}

// quietFor is how long a change that does not concern the node's other pods waits until the
// node is planned again. A pod that leaves is seen three or four times on its way out, and most of that
// does not matter, as it was we who sent it away. It delays what is reported of the drain, never an
// eviction or the drain's end.
const quietFor = 500 * time.Millisecond

func (e PodSeen) apply(f *Fleet) {
	n := f.nodes[e.Node]
	if n == nil {
		return
	}
	was, is := e.Before, e.After
	if was != nil && (is == nil || is.UID != was.UID) {
		delete(n.pods, was.UID)
		delete(n.came, was.UID)
	}
	isNew := is != nil && (was == nil || was.UID != is.UID)
	if is != nil {
		n.pods[is.UID] = is
	}
	if !n.listed { // the first list
		return
	}
	if isNew {
		n.came[is.UID] = f.now
	}
	soon := false
	switch {
	case isNew:
	case is != nil && same(was, is):
		return
	case is == nil, Finished(is) && !Finished(was):
		soon = n.othersLeft()
	default:
		soon = is.DeletionTimestamp != nil && IsSurged(was) == IsSurged(is)
	}
	n.fresh = false
	if soon {
		f.plans.sooner(n, f.now.Add(quietFor))
	} else {
		f.plans.sooner(n, f.now)
	}
}

// same reports whether nothing that Lean keeps has changed.
func same(a, b *corev1.Pod) bool {
	as := *a
	as.ResourceVersion = b.ResourceVersion
	return reflect.DeepEqual(&as, b)
}

// othersLeft reports whether pods besides our own still have to leave.
func (n *node) othersLeft() bool {
	sit := Situation{NodeState: n.state, Came: n.came, Policy: n.sit.Policy, Pods: n.list()}
	return sit.others()
}

func (n *node) list() []*corev1.Pod {
	list := make([]*corev1.Pod, 0, len(n.pods))
	for _, pod := range n.pods {
		list = append(list, pod)
	}
	return list
}

// PodAnswered is what a pod has answered to a notice: it overrides what is annotated.
type PodAnswered struct {
	Node string
	Pod  types.UID
	When When
}

func (e PodAnswered) apply(f *Fleet) {
	if n := f.nodes[e.Node]; n != nil {
		n.answers[e.Pod] = e.When
		f.plans.sooner(n, f.now)
	}
}

// lookFor is how long a first plan waits to learn enough about the pods' namespaces,
// Deployments and budgets to say which pods are surged, and which stay.
const lookFor = 500 * time.Millisecond

// plan plans the node with that state.
func (f *Fleet) plan(n *node, state NodeState) View {
	sit := f.gather(n, state)
	if n.canceled {
		f.reportGangs(n, nil)
	} else {
		f.reportGangs(n, sit.departures())
	}
	sit.Gangs = f.gangs.Of(n.name)
	n.sit = sit
	view := ViewOf(Plan(f.now, sit))
	n.complete = true
	for _, pod := range view.Moving {
		_, asked := sit.Namespaces[pod.Namespace]
		n.complete = n.complete && asked && f.budgetsIn(pod.Namespace).listed && (!view.Surged[pod.UID] || sit.surgeKnown(pod))
	}
	if n.known.IsZero() {
		n.known = f.now
		f.wavesStale()
		if len(view.Moving) > 0 {
			f.todo.Planned = append(f.todo.Planned, n.name)
		}
	}
	if enough := n.known.Add(lookFor); !n.complete && f.now.Before(enough) {
		f.plans.sooner(n, enough)
	}
	return view
}

// reportGangs takes in when the gangs of the node's pods leave, as far as these decide it.
func (f *Fleet) reportGangs(n *node, own map[Gang]Departure) {
	for _, name := range f.gangs.Report(f.now, n.name, own) {
		if other := f.nodes[name]; other != nil {
			f.plans.sooner(other, f.now)
		}
	}
}

// replan plans the node again, and has its pods wait for what is to be requested for them.
func (f *Fleet) replan(n *node) {
	n.view, n.fresh = f.plan(n, n.state), true
	n.until = time.Time{}
	for _, d := range n.view.Plan {
		if !d.Moves() && !d.Stays {
			continue
		}
		for _, at := range []time.Time{d.At, d.Until, d.Latest} {
			if at.After(f.now) {
				n.until = interruption.Earlier(n.until, at)
			}
		}
	}
	if n.draining {
		f.track(n)
		if !n.status.Next.IsZero() {
			f.plans.sooner(n, n.status.Next)
		}
	}
}

// track takes in the node's plan.
func (f *Fleet) track(n *node) {
	n.tracking = true
	status := Status{View: n.view, Moved: true}
	next := func(at time.Time) {
		if at.After(f.now) {
			status.Next = interruption.Earlier(status.Next, at)
		}
	}
	present := make(map[types.UID]bool, len(n.view.Plan))
	for _, d := range n.view.Plan {
		if d.Stays {
			status.Moved = false
			next(d.Until)
		}
		if !d.Moves() {
			continue
		}
		f.reportMeaningless(n, d)
		present[d.Pod.UID] = true
		status.Moved = false
		t := f.trackPod(n, d.Pod)
		next(d.At)
		next(d.Until)
		next(d.Latest)
		if t.blocked && t.refusal != "" {
			status.Refusal = t.refusal
		}
		f.decided(t, d)
		status.Due = status.Due || t.stays() && (d.Action == Evict || d.Action == Force)
	}
	for uid, t := range n.tracked {
		if t.gone = !present[uid]; !t.gone {
			t.goneAt = time.Time{}
			continue
		}
		if t.goneAt.IsZero() {
			t.goneAt = f.now
		}
		f.place(t)
	}
	switch {
	case !status.Moved:
		n.emptied = time.Time{}
	case n.emptied.IsZero():
		n.emptied = f.now
	}
	volumes, known := f.volumes(n)
	status.Done = status.Moved && (known && volumes == 0 || n.state.Deadline.IsZero() && f.now.Sub(n.emptied) >= detachFor)
	if status.Moved && !status.Done && n.state.Deadline.IsZero() {
		next(n.emptied.Add(detachFor))
	}
	status.Volumes = volumes
	status.Total, status.Begun = len(n.tracked), n.begun
	n.status = status
}

// detachFor bounds the wait for volumes where there is no deadline. An EBS volume takes
// some seconds to detach; the attach-detach controller itself stops waiting after 6
// minutes.
const detachFor = 2 * time.Minute

// reportMeaningless does so once for each pod, or for its namespace.
func (f *Fleet) reportMeaningless(n *node, d Decision) {
	who := string(d.Pod.UID)
	if d.OfNamespace {
		who = d.Pod.Namespace
	}
	if d.Meaningless != "" && !n.reported[who] {
		n.reported[who] = true
		f.report(Report{Kind: AnnotationMeaningless, Node: n.name, Pod: d.Pod, Reason: d.Meaningless, OfNamespace: d.OfNamespace})
	}
}

// result counts the node's pods, each once, and returns those that are still there and were not sent away. Of a
// node that only a predecessor has drained, the plan says which had to leave.
func (f *Fleet) result(n *node) (r interruption.Pods, left []Left) {
	sit := Situation{NodeState: n.state}
	list := slices.Collect(maps.Values(n.tracked))
	for _, pod := range n.view.Moving {
		if n.tracked[pod.UID] == nil {
			list = append(list, f.newTracked(n, pod))
		}
	}
	slices.SortFunc(list, byPod)
	for _, t := range list {
		pod := n.pods[t.pod.UID]
		t.gone = pod == nil || sit.notOurs(pod) != ""
		if !t.gone && pod.DeletionTimestamp != nil {
			t.send(evicted)
		}
		r.Total++
		switch {
		case t.stays():
			r.Left++
			r.Refusal = cmp.Or(t.refusal, r.Refusal)
			left = append(left, Left{t.pod, cmp.Or(t.refusal, t.failure)})
		case t.sent == forceDeleted:
			r.Forced++
		case t.sent == cutShort, !t.gone:
			r.Truncated++
		default:
			r.Graceful++
		}
	}
	return r, left
}
