package audit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/drain"
)

// budgetsThatNeverAllow: as many pods as there are have to be healthy, so the API server refuses
// every eviction. Only pods whose successors are made first get away.
func budgetsThatNeverAllow(s Snapshot) (found []Finding) {
	for _, b := range s.Budgets {
		if b.Status.ExpectedPods == 0 || b.Status.ExpectedPods > b.Status.DesiredHealthy {
			continue
		}
		stuck := slices.DeleteFunc(s.covered(b), func(p *Pod) bool { return p.Surges })
		if len(stuck) == 0 {
			continue
		}
		found = append(found, Finding{
			Namespace: b.Namespace, Object: "poddisruptionbudget/" + b.Name, Pods: len(stuck),
			What: fmt.Sprintf("never allows an eviction: %d of %d pods have to be healthy", b.Status.DesiredHealthy, b.Status.ExpectedPods),
			Why:  fmt.Sprintf("%s of %s cannot be evicted, and end with their node", pods(len(stuck)), owners(stuck)),
			Fix:  patchBudget(b, `"minAvailable":null,"maxUnavailable":1`),
		})
	}
	return found
}

// podsWithTwoBudgets: the API server evicts no pod that two budgets cover.
func podsWithTwoBudgets(s Snapshot) (found []Finding) {
	type pair struct{ namespace, first, second string }
	both := map[pair][]*Pod{}
	theirs := map[string]*policyv1.PodDisruptionBudget{} // the first of each pod
	for _, b := range s.Budgets {
		for _, p := range s.covered(b) {
			key := p.Namespace + "/" + p.Name
			first, taken := theirs[key]
			if !taken {
				theirs[key] = b
				continue
			}
			of := pair{b.Namespace, first.Name, b.Name}
			both[of] = append(both[of], p)
		}
	}
	for of, covered := range both {
		found = append(found, Finding{
			Namespace: of.namespace, Object: "poddisruptionbudget/" + of.second, Pods: len(covered),
			What: fmt.Sprintf("covers %s that budget %s covers too", pods(len(covered)), of.first),
			Why:  fmt.Sprintf("the API server evicts no pod with two budgets: those of %s end with their node", owners(covered)),
			Fix:  budgetNamed(of.namespace, of.second).kubectl("delete"),
		})
	}
	return found
}

// budgetsThatSelectNothing: whoever wrote it believes that pods are covered, and all of them can be
// evicted at once.
func budgetsThatSelectNothing(s Snapshot) (found []Finding) {
	for _, b := range s.Budgets {
		counted := b.Status.ObservedGeneration >= b.Generation
		if !counted || b.Status.ExpectedPods > 0 || len(s.in[b.Namespace]) == 0 || len(s.covered(b)) > 0 || s.idle(b) {
			continue
		}
		f := Finding{
			Namespace: b.Namespace, Object: "poddisruptionbudget/" + b.Name, What: "selects no pod",
			Why: "the pods that it is for can all be evicted at the same moment",
			Fix: budgetNamed(b.Namespace, b.Name).kubectl("delete"),
		}
		if labels, n := s.meant(b); n > 0 {
			f.Pods, f.Fix = n, patchBudget(b, fmt.Sprintf(`"selector":{"matchLabels":%s}`, labels))
		}
		found = append(found, f)
	}
	return found
}

// idle reports whether the budget is for pods that nobody wants at the moment.
func (s Snapshot) idle(b *policyv1.PodDisruptionBudget) bool {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err != nil || slices.ContainsFunc(s.Idle[b.Namespace], func(l labels.Set) bool { return selector.Matches(l) })
}

// meant finds the workload of the budget's own name, and what the budget's labels would have to
// be for its pods, as JSON.
func (s Snapshot) meant(b *policyv1.PodDisruptionBudget) (text string, pods int) {
	if b.Spec.Selector == nil || len(b.Spec.Selector.MatchLabels) == 0 || len(b.Spec.Selector.MatchExpressions) > 0 {
		return "", 0
	}
	theirs := slices.DeleteFunc(slices.Clone(s.in[b.Namespace]), func(p *Pod) bool {
		_, name, _ := strings.Cut(p.Owner, "/")
		return name != b.Name
	})
	if len(theirs) == 0 {
		return "", 0
	}
	right := map[string]string{}
	for key := range b.Spec.Selector.MatchLabels {
		value, ok := theirs[0].Labels[key]
		if !ok {
			return "", 0
		}
		right[key] = value
	}
	for _, p := range theirs {
		if !labels.SelectorFromSet(right).Matches(labels.Set(p.Labels)) {
			return "", 0
		}
	}
	encoded, _ := json.Marshal(right) // strings
	return string(encoded), len(theirs)
}

// hashLabel is what a surge changes of a pod.
const hashLabel = "pod-template-hash"

// budgetsThatSelectByHash: the budget would cover other pods once some are surged, so none is.
func budgetsThatSelectByHash(s Snapshot) (found []Finding) {
	for _, b := range s.Budgets {
		if b.Spec.Selector == nil || !selectsByHash(b.Spec.Selector) {
			continue
		}
		var held []*Pod
		for _, p := range s.in[b.Namespace] {
			if p.Surges && p.Labels[hashLabel] != "" && drain.LosesSurged(b, p.Labels) {
				held = append(held, p)
			}
		}
		if len(held) == 0 {
			continue
		}
		found = append(found, Finding{
			Namespace: b.Namespace, Object: "poddisruptionbudget/" + b.Name, Pods: len(held),
			What: "selects by " + hashLabel + ", which a surge changes",
			Why:  fmt.Sprintf("the pods of %s are not surged: they leave before their successors are ready", owners(held)),
			Fix:  withoutHash(b),
		})
	}
	return found
}

// withoutHash lets a budget select by what else it selects by. If that is nothing, it would cover
// every pod of its namespace.
func withoutHash(b *policyv1.PodDisruptionBudget) string {
	rest := b.Spec.Selector.DeepCopy()
	maps.DeleteFunc(rest.MatchLabels, func(key, _ string) bool { return isHash(key) })
	rest.MatchExpressions = slices.DeleteFunc(rest.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return isHash(r.Key) })
	if len(rest.MatchLabels)+len(rest.MatchExpressions) == 0 {
		return budgetNamed(b.Namespace, b.Name).kubectl("delete")
	}
	text, _ := json.Marshal(rest) // strings
	return budgetNamed(b.Namespace, b.Name).kubectl("patch", "--type=json", "-p", fmt.Sprintf(`[{"op":"replace","path":"/spec/selector","value":%s}]`, text))
}

func isHash(key string) bool { return key == hashLabel || key == drain.SurgedLabel }

func selectsByHash(selector *metav1.LabelSelector) bool {
	for key := range selector.MatchLabels {
		if isHash(key) {
			return true
		}
	}
	return slices.ContainsFunc(selector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return isHash(r.Key) })
}

func patchBudget(b *policyv1.PodDisruptionBudget, spec string) string {
	return budgetNamed(b.Namespace, b.Name).kubectl("patch", "--type=merge", "-p", `{"spec":{`+spec+"}}")
}

func budgetNamed(namespace, name string) Owned {
	return Owned{namespace, "poddisruptionbudget/" + name}
}

// covered are the pods that a budget selects.
func (s Snapshot) covered(b *policyv1.PodDisruptionBudget) (covered []*Pod) {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		return nil
	}
	for _, p := range s.in[b.Namespace] {
		if selector.Matches(labels.Set(p.Labels)) {
			covered = append(covered, p)
		}
	}
	return covered
}

// owners names the workloads of pods.
func owners(list []*Pod) string {
	var names []string
	for _, p := range list {
		if !slices.Contains(names, p.Owner) {
			names = append(names, p.Owner)
		}
	}
	slices.Sort(names)
	const enough = 3
	if more := len(names) - enough; more > 0 {
		names = append(names[:enough], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}
