package placeholder

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selector selects the nodes that placeholders can run on. The zero value selects none.
type Selector struct {
	text         string
	requirements []corev1.NodeSelectorRequirement
	parsed       labels.Requirements
}

// ParseSelector reads a label selector in kubectl's syntax, such as
// "node-lifecycle=on-demand" or "pool in (a, b),!spot". An empty text is the zero Selector.
// https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors
func ParseSelector(text string) (Selector, error) {
	parsed, err := labels.Parse(text)
	if err != nil {
		return Selector{}, fmt.Errorf("parse label selector %q: %w", text, err)
	}
	s := Selector{text: parsed.String()}
	s.parsed, _ = parsed.Requirements()
	for _, r := range s.parsed {
		operator, ok := operators[r.Operator()]
		if !ok { // cannot happen: these are all
			return Selector{}, fmt.Errorf("parse label selector %q: operator %q has no use on nodes", text, r.Operator())
		}
		s.requirements = append(s.requirements, corev1.NodeSelectorRequirement{
			Key: r.Key(), Operator: operator, Values: slices.Sorted(slices.Values(r.ValuesUnsorted())),
		})
	}
	return s, nil
}

var operators = map[selection.Operator]corev1.NodeSelectorOperator{
	selection.Equals:       corev1.NodeSelectorOpIn,
	selection.DoubleEquals: corev1.NodeSelectorOpIn,
	selection.In:           corev1.NodeSelectorOpIn,
	selection.NotEquals:    corev1.NodeSelectorOpNotIn,
	selection.NotIn:        corev1.NodeSelectorOpNotIn,
	selection.Exists:       corev1.NodeSelectorOpExists,
	selection.DoesNotExist: corev1.NodeSelectorOpDoesNotExist,
	selection.GreaterThan:  corev1.NodeSelectorOpGt,
	selection.LessThan:     corev1.NodeSelectorOpLt,
}

// Empty reports whether it is the zero Selector.
func (s Selector) Empty() bool { return len(s.requirements) == 0 }

func (s Selector) String() string { return s.text }

// terms join the pod's required node affinity with the selector, and with the zone if there
// is one. They leave out what no fallback node can satisfy, as far as the labels that both
// name show: there are no terms if the pod cannot run on fallback nodes at all. A placeholder
// for it would never find a node, and would hold up the others.
func (s Selector) terms(pod *corev1.Pod, zone string) []corev1.NodeSelectorTerm {
	if _, pinned := pod.Spec.NodeSelector[corev1.LabelHostname]; pinned {
		return nil // the pod is bound to the node that ends
	}
	for key, value := range pod.Spec.NodeSelector {
		if !s.allows(key, value) || (zone != "" && key == corev1.LabelTopologyZone && value != zone) {
			return nil
		}
	}
	extra := slices.Clone(s.requirements)
	if zone != "" {
		extra = append(extra, corev1.NodeSelectorRequirement{
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone},
		})
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return []corev1.NodeSelectorTerm{{MatchExpressions: extra}}
	}
	var terms []corev1.NodeSelectorTerm
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		if s.possible(term) {
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: slices.Concat(term.MatchExpressions, extra)})
		}
	}
	return terms
}

// possible reports whether a fallback node can satisfy the term, as far as labels show.
func (s Selector) possible(term corev1.NodeSelectorTerm) bool {
	if len(term.MatchFields) > 0 {
		return false // a single node, by its name
	}
	if len(term.MatchExpressions) == 0 {
		return false // the scheduler treats an empty term as impossible
	}
	for _, e := range term.MatchExpressions {
		if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn {
			return false
		}
		if e.Operator == corev1.NodeSelectorOpIn && !slices.ContainsFunc(e.Values, func(v string) bool { return s.allows(e.Key, v) }) {
			return false
		}
		if e.Operator == corev1.NodeSelectorOpNotIn && s.only(e.Key, e.Values) {
			return false
		}
	}
	return true
}

// allows reports whether a fallback node can have the label.
func (s Selector) allows(key, value string) bool {
	for _, r := range s.parsed {
		if r.Key() == key && !r.Matches(labels.Set{key: value}) {
			return false
		}
	}
	return true
}

// only reports whether every fallback node has one of the values under the key.
func (s Selector) only(key string, values []string) bool {
	return slices.ContainsFunc(s.requirements, func(r corev1.NodeSelectorRequirement) bool {
		return r.Key == key && r.Operator == corev1.NodeSelectorOpIn &&
			!slices.ContainsFunc(r.Values, func(v string) bool { return !slices.Contains(values, v) })
	})
}

// zoneOf is the zone that the pod's successor is bound to by its volumes, or "". Only the
// PersistentVolume says whether it can be attached elsewhere, so any claim counts as bound to
// the zone in which the pod runs.
func zoneOf(node *corev1.Node, pod *corev1.Pod) string {
	if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil }) {
		return node.Labels[corev1.LabelTopologyZone]
	}
	return ""
}
