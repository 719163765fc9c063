package plan

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner/room"
)

// world is the cluster as it is at a moment of the forecast.
type world struct {
	in  Input
	now time.Time
	agenda

	nodes     map[string]*node
	inOrder   []*node     // the same, to go through all
	lost      []*lostNode // by name
	pods      map[types.UID]*pod
	fates     []*fate
	waiting   []*pod // for a node, the oldest first
	exclusive []*pod // that keep others away

	controllers map[types.UID]*controller
	workloads   map[string]*workload
	deployments map[types.NamespacedName]*workload
	budgets     map[string][]*budget // by namespace

	fleet   *plan.Fleet
	watched map[plan.Subject]bool
	asks    time.Time // when the fleet is asked next; zero: when something happens

	scheduling bool // a round of the scheduler is on the agenda
	made       int  // pods
}

// node is a Node on which there is something, or can be.
type node struct {
	*corev1.Node
	free   room.Space
	closed bool // nothing is scheduled to it
	pods   map[types.UID]*pod
	lost   *lostNode // nil unless it is lost
}

// lostNode is a node that EC2 takes, and its drain.
type lostNode struct {
	*node
	Lost
	report    Node
	end       time.Time // of the drain, at the latest; zero: none
	ready     time.Time // since when Capacity is ReadyCapacity
	over      bool
	dead      bool // EC2 has taken it
	detaching bool // its volumes will be detached
	refused   map[types.UID]string
}

// pod is one pod. What Pod shows is what the API would: it is replaced, never changed in place.
type pod struct {
	*corev1.Pod
	seen       *corev1.Pod   // on its node, by the drain
	member     *plan.Replica // of its Deployment, as the drain has seen it
	node       *node
	controller *controller
	workload   *workload
	budgets    []*budget
	keepsAway  []room.Term // by its anti-affinity
	fresh      bool        // made in the forecast
	fate       *fate
}

func newWorld(in Input) *world {
	w := &world{
		in:          in,
		now:         in.At,
		nodes:       map[string]*node{},
		pods:        map[types.UID]*pod{},
		controllers: map[types.UID]*controller{},
		workloads:   map[string]*workload{},
		deployments: map[types.NamespacedName]*workload{},
		budgets:     map[string][]*budget{},
		fleet:       newFleet(in.Policy),
		watched:     map[plan.Subject]bool{},
	}
	for _, n := range in.Nodes {
		w.addNode(n)
	}
	for _, l := range in.Lost {
		w.lost = append(w.lost, w.newLostNode(l))
	}
	slices.SortFunc(w.lost, func(a, b *lostNode) int { return cmp.Compare(a.Lost.Node.Name, b.Lost.Node.Name) })
	for _, b := range in.Budgets {
		w.budgets[b.Namespace] = append(w.budgets[b.Namespace], newBudget(b))
	}
	pods := slices.Clone(in.Pods)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, p := range pods {
		if !plan.Finished(p) {
			w.add(p)
		}
	}
	w.countReplicas()
	for _, l := range w.lost {
		for _, p := range l.pods {
			w.uses(l, p)
		}
	}
	for _, of := range w.workloads {
		of.begin(w)
	}
	for _, all := range w.budgets {
		for _, b := range all {
			b.begin(w)
		}
	}
	return w
}

// uses notes whose changes concern the drain of the node.
func (w *world) uses(l *lostNode, p *pod) {
	if p.workload != nil {
		p.workload.users[l] = true
	}
	for _, b := range p.budgets {
		b.users[l] = true
		b.report.Covers++
	}
}

func (w *world) addNode(n *corev1.Node) *node {
	added := &node{
		Node:   n,
		free:   room.NewSpace(n.Status.Allocatable),
		closed: n.Spec.Unschedulable || n.DeletionTimestamp != nil || !nodes.Ready(n),
		pods:   map[types.UID]*pod{},
	}
	w.inOrder = append(w.inOrder, added)
	w.nodes[n.Name] = added
	return added
}

func (w *world) newLostNode(lost Lost) *lostNode {
	l := &lostNode{node: w.nodes[lost.Node.Name], Lost: lost, refused: map[types.UID]string{}}
	l.node.lost = l
	l.report = Node{Name: lost.Node.Name, Kind: lost.Kind, Notice: w.offset(lost.Noticed)}
	if !lost.Deadline.IsZero() {
		l.end = interruption.Record{Received: lost.Noticed, Deadline: lost.Deadline}.DrainEnd()
	}
	return l
}

// add puts a pod into the world, as it was read or as its controller has just made it.
func (w *world) add(p *corev1.Pod) *pod {
	added := &pod{Pod: p, node: w.nodes[p.Spec.NodeName], keepsAway: room.AntiTerms(p)}
	w.pods[p.UID] = added
	added.controller, added.workload = w.makerOf(added)
	if added.workload != nil {
		added.workload.pods[p.UID] = added
	}
	for _, b := range w.budgets[p.Namespace] {
		if b.selector.Matches(labels.Set(p.Labels)) {
			added.budgets = append(added.budgets, b)
			b.pods[p.UID] = added
		}
	}
	if len(added.keepsAway) > 0 {
		w.exclusive = append(w.exclusive, added)
	}
	switch {
	case p.Spec.NodeName == "":
		w.waiting = append(w.waiting, added)
	case added.node != nil:
		added.node.place(added)
		w.expectOf(added)
	}
	return added
}

// expectOf puts on the agenda what a pod that was read is about to do.
func (w *world) expectOf(p *pod) {
	switch {
	case p.DeletionTimestamp != nil:
		own := time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)) * time.Second
		w.at(p.DeletionTimestamp.Add(min(own, w.in.Assumptions.Stop.Duration())-own), podsFirst, func() { w.gone(p) })
	case !Serves(p.Pod):
		w.at(w.now, podsFirst, func() { // once the workload's startup is known
			by := scheduledAt(p.Pod).Add(p.startup(w))
			late := max(0, w.now.Sub(by))
			if !p.workload.neverReady() && late < lateStart { // it is taken to need as long again as it is late
				w.at(by.Add(2*late), podsFirst, func() { w.becomesReady(p) })
			}
		})
	}
}

// lateStart is how late a pod can be for its workload's usual start and still be taken for one that
// starts. One that is later has some other trouble.
const lateStart = 30 * time.Second

// changed shows everybody how a pod is now whom that concerns.
func (w *world) changed(p *pod) {
	if p.workload != nil {
		p.workload.account(w)
	}
	if p.controller != nil {
		w.control(p.controller)
	}
	for _, b := range p.budgets {
		b.changed(w)
	}
	w.tell(p)
}

// show replaces what the API shows of a pod.
func (w *world) show(p *pod, next *corev1.Pod) {
	p.Pod = next
	w.changed(p)
}

func (w *world) becomesReady(p *pod) {
	if w.pods[p.UID] != p || p.DeletionTimestamp != nil || Serves(p.Pod) {
		return
	}
	w.show(p, with(p.Pod, corev1.PodReady, corev1.ConditionTrue, "", w.now))
}

// gone removes a pod that has ended.
func (w *world) gone(p *pod) {
	if w.pods[p.UID] != p {
		return
	}
	delete(w.pods, p.UID)
	if p.DeletionTimestamp == nil {
		p.controller.podFailed(w.now)
	}
	if p.workload != nil {
		delete(p.workload.pods, p.UID)
	}
	for _, b := range p.budgets {
		delete(b.pods, p.UID)
	}
	w.exclusive = slices.DeleteFunc(w.exclusive, func(k *pod) bool { return k == p })
	w.waiting = slices.DeleteFunc(w.waiting, func(k *pod) bool { return k == p })
	if p.fate != nil {
		p.fate.Gone = w.offsetOf(w.now)
	}
	w.changed(p)
	if p.node != nil {
		p.node.remove(p)
		w.schedule()
	}
}

// offset is the time since the first notice.
func (w *world) offset(t time.Time) Seconds { return Seconds(t.Sub(w.in.At).Seconds()) }

func (w *world) offsetOf(t time.Time) *Seconds {
	if t.IsZero() {
		return nil
	}
	return new(w.offset(t))
}

// Serves reports whether a pod is Ready and not terminating.
func Serves(p *corev1.Pod) bool {
	_, ready := plan.Ready(p)
	return ready && p.DeletionTimestamp == nil
}

func scheduledAt(p *corev1.Pod) time.Time {
	if c := plan.Condition(p, corev1.PodScheduled); c != nil {
		return c.LastTransitionTime.Time
	}
	return p.CreationTimestamp.Time
}

// with is the pod with a condition changed.
func with(p *corev1.Pod, kind corev1.PodConditionType, status corev1.ConditionStatus, reason string, now time.Time) *corev1.Pod {
	c := *p
	c.Status.Conditions = slices.DeleteFunc(slices.Clone(p.Status.Conditions), func(c corev1.PodCondition) bool { return c.Type == kind })
	c.Status.Conditions = append(c.Status.Conditions, corev1.PodCondition{
		Type:               kind,
		Status:             status,
		Reason:             reason,
		LastTransitionTime: metav1.NewTime(now),
	})
	return &c
}
