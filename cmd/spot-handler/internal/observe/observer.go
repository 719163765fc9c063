package observe

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
)

// Observer makes a recording of what it is told. It is safe for concurrent use.
type Observer struct {
	wanted map[string]bool // nodes; nil is all
	need   func(need)      // asks to be told of more; must not block

	mu        sync.Mutex
	from      time.Time
	all       map[string]*corev1.Node
	nodes     []*nodeLife
	open      map[string]*nodeLife // by name
	pods      map[types.UID]*corev1.Pod
	gone      map[types.UID]bool
	lives     map[types.UID]*podLife
	workloads map[workloadRef]*workload
	budgets   map[types.NamespacedName]*Budget
	covers    map[types.NamespacedName]labels.Selector
	claims    map[string]time.Time // when they had an instance
	unread    []string
}

// New returns an observer of these nodes, or of all that are interrupted if there are none. It
// follows interruptions that are not over yet.
func New(now time.Time, wanted ...string) *Observer {
	o := &Observer{
		need: func(need) {}, from: now,
		all: map[string]*corev1.Node{}, open: map[string]*nodeLife{},
		pods: map[types.UID]*corev1.Pod{}, gone: map[types.UID]bool{}, lives: map[types.UID]*podLife{},
		workloads: map[workloadRef]*workload{}, claims: map[string]time.Time{},
		budgets: map[types.NamespacedName]*Budget{}, covers: map[types.NamespacedName]labels.Selector{},
	}
	for _, name := range wanted {
		if o.wanted == nil {
			o.wanted = map[string]bool{}
		}
		o.wanted[name] = true
	}
	return o
}

// begin asks for what has to be told from the start.
func (o *Observer) begin() {
	for name := range o.wanted {
		o.need(need{podsOn: name})
	}
}

// node takes a change of a Node.
func (o *Observer) node(at time.Time, node *corev1.Node, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if gone {
		delete(o.all, node.Name)
	} else {
		o.all[node.Name] = node
	}
	life := o.open[node.Name]
	// The last event of a Node that goes may still bring news of its record.
	rec, has, err := nodes.Record(node)
	has = has && err == nil
	if life != nil && has && life.rec.Phase.Over() && !rec.Phase.Over() {
		o.end(life, at, Restored) // and interrupted again
		life = nil
	}
	if life == nil && has && !rec.Phase.Over() && (o.wanted == nil || o.wanted[node.Name]) {
		life = &nodeLife{name: node.Name, pool: nodes.PoolOf(node).Name}
		o.nodes, o.open[node.Name] = append(o.nodes, life), life
		o.need(need{podsOn: node.Name})
	}
	if life == nil {
		return
	}
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
	life.end, life.endAt = how, at
	delete(o.open, life.name)
}

// pod takes a change of a pod. A pod that was selected by its labels, and no longer is, looks as
// if it were gone: of pods on the nodes only those count that were selected by their node.
func (o *Observer) pod(at time.Time, pod *corev1.Pod, gone, byLabels bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.pods[pod.UID]
	switch {
	case o.gone[pod.UID], !gone && before != nil && nodes.Older(pod.ResourceVersion, before.ResourceVersion): // two watches tell of the same pod
		return
	case gone && byLabels && (o.open[pod.Spec.NodeName] != nil || o.wanted[pod.Spec.NodeName]):
		return
	case gone:
		delete(o.pods, pod.UID)
		o.gone[pod.UID] = true
	default:
		o.pods[pod.UID] = pod
	}
	if life := o.open[pod.Spec.NodeName]; life != nil && !gone {
		o.live(at, life, pod)
	} else if o.wanted[pod.Spec.NodeName] && !gone {
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
	if l == nil {
		if node.rec.Phase.Over() || len(status.Leaving(at, node.rec, []*corev1.Pod{pod})) == 0 {
			return
		}
		l = newPodLife(node, pod)
		o.lives[pod.UID], node.pods = l, append(node.pods, l)
		o.follow(pod)
	}
	l.update(at, pod, false)
}

// follow asks to be told of all pods of a pod's workload, and of its budgets.
func (o *Observer) follow(pod *corev1.Pod) {
	ref := workloadOf(pod)
	if _, known := o.workloads[ref]; known || !ref.counted() {
		return
	}
	o.workloads[ref] = &workload{ref: ref}
	o.need(need{workload: ref})
	o.need(need{budgetsOf: pod.Namespace})
}

// workload takes a change of a workload: what it selects and how many pods it asks for.
func (o *Observer) workload(at time.Time, ref workloadRef, selector labels.Selector, desired int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.workloads[ref]
	if w == nil {
		return
	}
	if w.selector == nil || w.selector.String() != selector.String() {
		w.selector = selector
		o.need(need{podsOf: podSelector{ref.Namespace, selector.String()}})
	}
	w.desired = desired
	if w.counting {
		w.sample(at)
	}
}

// counted is called when all pods of a selection are known: from now on their workload has counts.
func (o *Observer) counted(at time.Time, of podSelector) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.workloads {
		if w.counting || w.selector == nil || w.ref.Namespace != of.namespace || w.selector.String() != of.labels {
			continue
		}
		w.counting, w.ready = true, map[types.UID]bool{}
		for _, pod := range o.pods {
			w.note(pod, false)
		}
		w.sample(at)
	}
}

// budget takes a change of a disruption budget.
func (o *Observer) budget(_ time.Time, b *policyv1.PodDisruptionBudget, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if gone || err != nil {
		return
	}
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	known := o.budgets[name]
	if known == nil || len(o.nodes) == 0 { // what was before the notice is of no interest
		known = &Budget{Namespace: b.Namespace, Name: b.Name, Fewest: int(b.Status.CurrentHealthy)}
	}
	o.budgets[name], o.covers[name] = known, selector
	known.Needed = max(known.Needed, int(b.Status.DesiredHealthy))
	known.Fewest = min(known.Fewest, int(b.Status.CurrentHealthy))
}

// event takes an Event of spot-handler's about a pod.
func (o *Observer) event(at time.Time, e *corev1.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.lives[e.InvolvedObject.UID]
	if l == nil || !notify.About(e, l.pod) {
		return
	}
	if told := e.FirstTimestamp.Time; !told.IsZero() && told.Before(at) {
		at = told
	}
	switch e.Reason {
	case notify.ReasonEvictionBlocked:
		l.refuse(at, e)
	case notify.ReasonEvictionForced:
		l.forced = true
	case notify.ReasonPodLeft:
		l.leftBehind = true
	}
}

// launched takes that a replacement has an instance.
func (o *Observer) launched(at time.Time, claim string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.claims[claim]; !known {
		o.claims[claim] = at
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
	begin := now
	concerned := map[workloadRef]bool{}
	for _, n := range o.nodes {
		r.Nodes = append(r.Nodes, n.tell(now, o.claims))
		begin = interruption.Earlier(begin, n.rec.Noticed)
		for _, p := range n.pods {
			concerned[p.workload] = true
		}
	}
	for ref, w := range o.workloads {
		if concerned[ref] && w.counting {
			r.Workloads = append(r.Workloads, w.tell(begin, now))
		}
	}
	slices.SortFunc(r.Workloads, func(a, b Workload) int {
		return cmp.Or(-cmp.Compare(a.Missing, b.Missing), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for name, b := range o.budgets {
		told := *b
		for _, l := range o.lives {
			if id := l.workload.String(); l.pod.Namespace == b.Namespace && o.covers[name].Matches(labels.Set(l.pod.Labels)) && id != "" && !slices.Contains(told.Workloads, id) {
				told.Workloads = append(told.Workloads, id)
			}
		}
		if len(told.Workloads) > 0 { // bare pods have no count
			slices.Sort(told.Workloads)
			r.Budgets = append(r.Budgets, told)
		}
	}
	slices.SortFunc(r.Budgets, func(a, b Budget) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return r
}

// Phase is the last phase that was seen.
func (n Node) Phase() interruption.Phase {
	if len(n.Phases) == 0 {
		return ""
	}
	return n.Phases[len(n.Phases)-1].Phase
}
