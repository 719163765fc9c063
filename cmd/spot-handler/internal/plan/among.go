package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/handler/provisioner/room"
)

// among is where other pods let a pod run: by its own required affinity, anti-affinity and spread,
// and by the anti-affinity of those that are there.
type among struct {
	never   bool
	closed  []domain          // domains that are out
	open    []map[string]bool // for each term, the values of its key that are in; see openKeys
	openKey []string
}

type domain struct{ key, value string }

// allow reports whether the pod may run on the node.
func (a among) allow(n *node) bool {
	if a.never {
		return false
	}
	for _, d := range a.closed {
		if value, ok := n.Labels[d.key]; ok && value == d.value {
			return false
		}
	}
	for i, key := range a.openKey {
		value, ok := n.Labels[key]
		if !ok || !a.open[i][value] {
			return false
		}
	}
	return true
}

func (w *world) amongOf(p *pod) among {
	var a among
	for _, k := range w.keepers {
		if k.node == nil {
			continue
		}
		for _, t := range antiTerms(k.Pod) {
			if matches(t, k.Pod, p.Pod) {
				a.close(t.TopologyKey, k.node)
			}
		}
	}
	for _, t := range antiTerms(p.Pod) {
		for _, other := range w.pods {
			if other.node != nil && matches(t, p.Pod, other.Pod) {
				a.close(t.TopologyKey, other.node)
			}
		}
	}
	if f := p.Spec.Affinity; f != nil && f.PodAffinity != nil {
		for _, t := range f.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			in := map[string]bool{}
			for _, other := range w.pods {
				if other.node != nil && other.DeletionTimestamp == nil && matches(t, p.Pod, other.Pod) {
					in[other.node.Labels[t.TopologyKey]] = true
				}
			}
			if len(in) == 0 && matches(t, p.Pod, p.Pod) {
				continue // the first of its kind
			}
			a.openKey, a.open = append(a.openKey, t.TopologyKey), append(a.open, in)
		}
	}
	for _, c := range p.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			a.openKey, a.open = append(a.openKey, c.TopologyKey), append(a.open, w.evenly(p, c))
		}
	}
	return a
}

func (a *among) close(key string, n *node) {
	if value, ok := n.Labels[key]; ok {
		a.closed = append(a.closed, domain{key, value})
	}
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
		if !ok || w.isDead(n) || !countsForSpread(n, suits, c) {
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

func keepsAway(p *corev1.Pod) bool { return len(antiTerms(p)) > 0 }

func antiTerms(p *corev1.Pod) []corev1.PodAffinityTerm {
	if p.Spec.Affinity == nil || p.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// matches reports whether the term of one pod is about another.
func matches(t corev1.PodAffinityTerm, of, other *corev1.Pod) bool {
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil && of.Namespace != other.Namespace ||
		len(t.Namespaces) > 0 && !slices.Contains(t.Namespaces, other.Namespace) {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
	return err == nil && selector.Matches(labels.Set(other.Labels))
}
