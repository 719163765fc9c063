package plan

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"spot-handler/drain/plan"
	"spot-handler/handler/provisioner/room"
)

// place subtracts what a pod requests from what is free.
func (n *node) place(p *pod) {
	n.pods[p.UID] = p
	n.free.Reserve(room.Requests(p.Pod))
}

// remove undoes place.
func (n *node) remove(p *pod) {
	if n.pods[p.UID] != nil {
		delete(n.pods, p.UID)
		n.free.GiveBack(room.Requests(p.Pod))
	}
}

// schedule has the scheduler run.
func (w *world) schedule() {
	if w.scheduling || len(w.waiting) == 0 {
		return
	}
	w.scheduling = true
	w.at(w.now, thenScheduler, func() {
		w.scheduling = false
		w.place()
	})
}

// place gives a node to every waiting pod that has a place, the most important and the oldest
// first.
func (w *world) place() {
	slices.SortStableFunc(w.waiting, func(a, b *pod) int {
		return cmp.Compare(corev1helpers.PodPriority(b.Pod), corev1helpers.PodPriority(a.Pod))
	})
	var still []*pod
	full := map[*controller]bool{} // for whose pods there is no place: each pod that gets one leaves less
	for _, p := range w.waiting {
		alike := p.controller != nil && p.Spec.Affinity == nil && len(p.Spec.TopologySpreadConstraints)+len(p.Spec.Volumes) == 0
		if alike && full[p.controller] {
			still = append(still, p)
			continue
		}
		if n := w.best(p); n != nil {
			w.bind(p, n)
			continue
		}
		full[p.controller] = alike
		still = append(still, p)
	}
	w.waiting = still
	for _, p := range still {
		if !plan.Unschedulable(p.Pod) {
			w.show(p, with(p.Pod, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, w.now))
		}
	}
}

// bind starts the pod on the node. Volumes that another node has have to be detached there first.
func (w *world) bind(p *pod, n *node) {
	p.node = n
	next := with(p.Pod, corev1.PodScheduled, corev1.ConditionTrue, "", w.now)
	next.Spec.NodeName, next.Status.Phase = n.Name, corev1.PodRunning
	n.place(p)
	took := p.startup(w)
	if len(w.in.Attached) > 0 && plan.HasVolumes(next) {
		took += w.in.Assumptions.Detach.Duration()
	}
	if !p.workload.neverReady() {
		w.at(w.now.Add(took), podsFirst, func() { w.becomesReady(p) })
	}
	w.show(p, next)
}

// best is the node with the most room of those where the pod may run.
func (w *world) best(p *pod) *node {
	requests := room.Requests(p.Pod)
	need, allowed := room.MeasureOf(requests), w.allowed(p)
	var best *node
	score := 0.0
	for _, n := range w.inOrder {
		// Most nodes have less room, which is quicker to find out than whether the pod may run there.
		s := n.free.Score(need)
		if best != nil && (s < score || s == score && n.Name > best.Name) {
			continue
		}
		if n.free.Fits(requests) && allowed(n) {
			best, score = n, s
		}
	}
	return best
}

// allowed says of a node whether the pod may run there, however much room it has.
func (w *world) allowed(p *pod) func(*node) bool {
	tolerant := plan.ToleratesAll(p.Pod, corev1.Taint{Effect: corev1.TaintEffectNoSchedule})
	zone, suits, rules := w.in.ZoneOf(p.Pod), room.Suits(p.Pod), w.rulesOf(p)
	return func(n *node) bool {
		if n.closed {
			beingDrained := n.lost != nil && !n.lost.dead
			if !tolerant || !beingDrained {
				return false
			}
		}
		if zone != "" && zone != n.Labels[corev1.LabelTopologyZone] {
			return false
		}
		return suits(n.Node) && !slices.ContainsFunc(rules, func(r rule) bool { return !r(n) })
	}
}

// rule is where other pods let a pod run.
type rule func(*node) bool

// outside allows all that is not in the node's domain.
func outside(key string, of *node) rule {
	closed, has := of.Labels[key]
	return func(n *node) bool {
		value, ok := n.Labels[key]
		return !has || !ok || value != closed
	}
}

// inside allows the domains that are open.
func inside(key string, open map[string]bool) rule {
	return func(n *node) bool {
		value, ok := n.Labels[key]
		return ok && open[value]
	}
}

// rulesOf are those for a pod: by its own required affinity, anti-affinity and spread, and by the
// anti-affinity of those that are there.
func (w *world) rulesOf(p *pod) (rules []rule) {
	for _, k := range w.exclusive {
		if k.node == nil {
			continue
		}
		for _, t := range k.keepsAway {
			if t.Matches(p.Pod) {
				rules = append(rules, outside(t.Key, k.node))
			}
		}
	}
	for _, t := range p.keepsAway {
		for _, other := range w.pods {
			if other.node != nil && t.Matches(other.Pod) {
				rules = append(rules, outside(t.Key, other.node))
			}
		}
	}
	for _, t := range room.NearTerms(p.Pod) {
		open := map[string]bool{}
		for _, other := range w.pods {
			if other.node != nil && other.DeletionTimestamp == nil && t.Matches(other.Pod) {
				open[other.node.Labels[t.Key]] = true
			}
		}
		if len(open) > 0 || !t.Matches(p.Pod) { // else it is the first of its kind
			rules = append(rules, inside(t.Key, open))
		}
	}
	for _, c := range p.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			rules = append(rules, inside(c.TopologyKey, w.evenly(p, c)))
		}
	}
	return rules
}

// evenly are the domains in which one more pod keeps the spread. Nodes that are cordoned or tainted
// count as domains too, unless the constraint says otherwise.
// https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/
func (w *world) evenly(p *pod, c corev1.TopologySpreadConstraint) map[string]bool {
	selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
	if err != nil {
		return nil
	}
	for _, key := range c.MatchLabelKeys {
		if value, ok := p.Labels[key]; ok {
			if r, err := labels.NewRequirement(key, "in", []string{value}); err == nil {
				selector = selector.Add(*r)
			}
		}
	}
	counts, suits := map[string]int{}, room.Suits(p.Pod)
	for _, n := range w.nodes {
		value, ok := n.Labels[c.TopologyKey]
		if !ok || n.lost != nil && n.lost.dead || !countsForSpread(n, suits, c) {
			continue
		}
		counts[value] += 0
		for _, other := range n.pods {
			if other.Namespace == p.Namespace && other.DeletionTimestamp == nil && selector.Matches(labels.Set(other.Labels)) {
				counts[value]++
			}
		}
	}
	least := -1
	for _, n := range counts {
		if least < 0 || n < least {
			least = n
		}
	}
	if c.MinDomains != nil && len(counts) < int(*c.MinDomains) {
		least = 0
	}
	own := 0
	if selector.Matches(labels.Set(p.Labels)) {
		own = 1
	}
	in := map[string]bool{}
	for value, n := range counts {
		in[value] = n+own-least <= int(c.MaxSkew)
	}
	return in
}

// countsForSpread reports whether the node counts for the constraint of a pod that suits it.
func countsForSpread(n *node, suits func(*corev1.Node) bool, c corev1.TopologySpreadConstraint) bool {
	if c.NodeTaintsPolicy != nil && *c.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor {
		return !n.closed && suits(n.Node)
	}
	bare := *n.Node
	bare.Spec.Taints = nil
	return suits(&bare)
}
