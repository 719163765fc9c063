package observe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
)

// Observer makes a recording of what watches show it. It is safe for concurrent use.
type Observer struct {
	wanted sets.Set[string] // nodes; empty is all
	need   func(need)       // asks for what else is to be watched; must not block

	mu        sync.Mutex
	from      time.Time
	nodes     []*nodeLife
	open      map[string]*nodeLife // by name
	pods      map[types.UID]*corev1.Pod
	gone      sets.Set[types.UID]
	lives     map[types.UID]*podLife
	workloads map[types.NamespacedName]*workload
	known     sets.Set[string] // namespaces whose pods are all known
	budgets   map[types.NamespacedName]*budget
	claims    map[string]time.Time // when they had an instance
	unread    []string
}

// New returns an observer of these nodes, or of all that are interrupted if there are none. It
// follows interruptions that are not over yet.
func New(now time.Time, wanted ...string) *Observer {
	return &Observer{
		wanted:    sets.New(wanted...),
		need:      func(need) {},
		from:      now,
		open:      map[string]*nodeLife{},
		pods:      map[types.UID]*corev1.Pod{},
		gone:      sets.New[types.UID](),
		lives:     map[types.UID]*podLife{},
		workloads: map[types.NamespacedName]*workload{},
		known:     sets.New[string](),
		claims:    map[string]time.Time{},
		budgets:   map[types.NamespacedName]*budget{},
	}
}

// begin asks for what has to be watched from the start.
func (o *Observer) begin() {
	for name := range o.wanted {
		o.need(need{node: name})
	}
}

// node takes a change of a Node.
func (o *Observer) node(at time.Time, node *corev1.Node, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	life := o.open[node.Name]
	// The last event of a Node that goes may still bring news of its record.
	rec, err := nodes.Record(node)
	has := err == nil
	if life != nil && has && life.rec.Phase.Over() && !rec.Phase.Over() {
		o.end(life, at, Restored) // and interrupted again
		life = nil
	}
	if life == nil && has && !rec.Phase.Over() && (len(o.wanted) == 0 || o.wanted.Has(node.Name)) {
		life = &nodeLife{Node: Node{Name: node.Name, Pool: nodes.PoolOf(node).Name}}
		o.nodes, o.open[node.Name] = append(o.nodes, life), life
		o.need(need{node: node.Name})
	}
	if life == nil {
		return
	}
	life.node = node
	if has {
		life.update(at, node, rec)
		for _, pod := range o.pods {
			if pod.Spec.NodeName == node.Name {
				o.live(at, life, pod)
			}
		}
	}
	switch {
	case gone:
		o.end(life, at, Gone)
	case !has:
		o.end(life, at, Restored)
	}
}

func (o *Observer) end(life *nodeLife, at time.Time, how End) {
	life.End, life.EndAt = how, &at
	delete(o.open, life.Name)
}

// pod takes in a change of a pod.
func (o *Observer) pod(at time.Time, pod *corev1.Pod, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.pods[pod.UID]
	switch {
	case o.gone.Has(pod.UID),
		!gone && before != nil && nodes.Older(pod.ResourceVersion, before.ResourceVersion): // two watches show the same pod
		return
	case gone:
		delete(o.pods, pod.UID)
		o.gone.Insert(pod.UID)
	default:
		o.pods[pod.UID] = pod
	}
	if life := o.open[pod.Spec.NodeName]; life != nil && !gone {
		o.live(at, life, pod)
	} else if o.wanted.Has(pod.Spec.NodeName) && !gone {
		o.follow(pod)
	}
	if l := o.lives[pod.UID]; l != nil {
		l.update(at, pod, gone)
		if gone {
			l.node.left(at)
		}
	}
	for _, w := range o.workloads {
		w.count(at, pod, gone)
	}
}

// live begins or goes on with the life of a pod on an interrupted node, if it has to leave.
func (o *Observer) live(at time.Time, node *nodeLife, pod *corev1.Pod) {
	l := o.lives[pod.UID]
	if l == nil || l.node != node { // of an interruption before
		if node.rec.Phase.Over() || len(status.Leaving(at, node.rec, []*corev1.Pod{pod})) == 0 {
			return
		}
		l = newPodLife(node, pod)
		o.lives[pod.UID], node.pods = l, append(node.pods, l)
		o.follow(pod)
	}
	l.update(at, pod, false)
}

// follow asks for the workloads of a pod's namespace, if its own is of a kind that is counted.
func (o *Observer) follow(pod *corev1.Pod) {
	if kind, _, _ := strings.Cut(plan.WorkloadOf(pod), "/"); slices.Contains(countedKinds, kind) {
		o.need(need{namespace: pod.Namespace})
	}
}

// event takes an Event of spot-handler's about a pod.
func (o *Observer) event(at time.Time, e *corev1.Event, _ bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lives[e.InvolvedObject.UID]
	if l == nil || !notify.About(e, l.pod) {
		return
	}
	at = interruption.Earlier(at, e.FirstTimestamp.Time)
	switch e.Reason {
	case notify.ReasonEvictionBlocked:
		l.refuse(at, e)
	case notify.ReasonEvictionForced:
		l.forced = true
	case notify.ReasonPodLeft:
		l.notEvicted = true
	}
}

// claim takes a change of a NodeClaim, which names its instance once Karpenter has launched it.
func (o *Observer) claim(at time.Time, claim *unstructured.Unstructured, _ bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id, _, _ := unstructured.NestedString(claim.Object, "status", "providerID")
	if _, known := o.claims[claim.GetName()]; !known && id != "" {
		o.claims[claim.GetName()] = at
	}
}

// miss takes that something cannot be watched.
func (o *Observer) miss(what string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !slices.Contains(o.unread, what) {
		o.unread = append(o.unread, what)
	}
}

// Recording is what was seen until now.
func (o *Observer) Recording(now time.Time) Recording {
	o.mu.Lock()
	defer o.mu.Unlock()
	r := Recording{From: o.from, To: now, Nodes: []Node{}, Unread: slices.Clone(o.unread)}
	concerned := map[types.NamespacedName]bool{}
	for _, n := range o.nodes {
		r.Nodes = append(r.Nodes, n.recorded(now, o.claims))
		for _, p := range n.pods {
			concerned[types.NamespacedName{Namespace: p.Namespace, Name: p.Workload}] = true
		}
	}
	for name, w := range o.workloads {
		if concerned[name] && w.ready != nil {
			r.Workloads = append(r.Workloads, w.recorded(r.Begin(), now))
		}
	}
	slices.SortFunc(r.Workloads, func(a, b Workload) int {
		return cmp.Or(-cmp.Compare(a.Missing, b.Missing), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, b := range o.budgets {
		if recorded := b.recorded(o.lives); len(recorded.Workloads) > 0 {
			r.Budgets = append(r.Budgets, recorded)
		}
	}
	slices.SortFunc(r.Budgets, func(a, b Budget) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return r
}

// Over reports whether nothing more is to be seen: every node that was wanted has come to its
// end, and the workloads have their pods back, or have had time for it.
func (o *Observer) Over(now time.Time) bool {
	r := o.Recording(now)
	seen := sets.New[string]()
	for _, n := range r.Nodes {
		seen.Insert(n.Name)
	}
	return seen.IsSuperset(o.wanted) && r.over()
}

// How much the view shows of what can be long. The worst comes first.
const (
	shownWorkloads  = 6
	shownHappenings = 6
	// leastHappenings are shown however long the rest is.
	leastHappenings = 3
)

// View is the picture of this moment, in so many columns and rows of a terminal: what `status`
// shows of the nodes, the ready pods of each workload, and what happened last. Where that is too
// long, it does without what happened earlier, and then without the last of the nodes.
func (o *Observer) View(now time.Time, width, height int) []string {
	r := o.Recording(now)
	if len(r.Nodes) == 0 {
		return []string{"No interruption yet."}
	}
	ready := slices.Concat([]string{""}, readyLines(r, width), []string{""})
	lines := o.head(now, width)
	if room := max(2, height-len(ready)-leastHappenings); len(lines) > room {
		lines = append(lines[:room-1:room-1], "...")
	}
	lines = append(lines, ready...)
	all := r.Happenings()
	for _, h := range all[max(0, len(all)-min(shownHappenings, max(leastHappenings, height-len(lines)))):] {
		lines = append(lines, r.Line(h))
	}
	return lines
}

// head is what status shows of the nodes.
func (o *Observer) head(now time.Time, width int) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var theirs []*corev1.Node
	on := map[string][]*corev1.Pod{}
	for _, life := range o.nodes {
		if life.End == "" {
			theirs = append(theirs, life.node)
			on[life.Name] = []*corev1.Pod{}
		}
	}
	for _, pod := range o.pods {
		if list, ours := on[pod.Spec.NodeName]; ours {
			on[pod.Spec.NodeName] = append(list, pod)
		}
	}
	if len(theirs) == 0 {
		return []string{"Over: " + console.Count(len(o.nodes), "interruption") + "."}
	}
	return status.List{Interruptions: status.Of(now, theirs, on)}.Table(width)
}

// readyLines are the ready pods of the workloads.
func readyLines(r Recording, width int) []string {
	rows := console.Rows(r.Workloads[:min(len(r.Workloads), shownWorkloads)], func(w Workload) []console.Cell {
		last := w.Samples[len(w.Samples)-1]
		ready := console.Cell{Text: fmt.Sprintf("%d of %d", last.Ready, last.Desired), Colour: console.Good}
		if last.Missing(w.Samples[0].Ready) > 0 {
			ready.Colour = console.Bad
		}
		return []console.Cell{{Text: w.Namespace + "/" + w.Name}, ready, {Text: fmt.Sprint(w.Fewest)}, {Text: r.NeededBy(w)}}
	})
	lines := console.Table([]console.Column{{Title: "WORKLOAD"}, {Title: "READY"}, {Title: "FEWEST"}, {Title: "BUDGET NEEDS"}}, rows, width)
	if more := len(r.Workloads) - shownWorkloads; more > 0 {
		lines = append(lines, "and "+console.Count(more, "more workload"))
	}
	return lines
}

// NeededBy is how many pods of a workload its disruption budgets need.
func (r Recording) NeededBy(w Workload) string {
	needed := console.None
	for _, b := range r.Budgets {
		if b.Namespace == w.Namespace && slices.Contains(b.Workloads, w.Name) {
			needed = fmt.Sprint(b.Needed)
		}
	}
	return needed
}
