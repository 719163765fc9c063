package audit

import (
	"fmt"
	"slices"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// budgetsThatNeverAllow: as many pods as there are have to be healthy, so the API server refuses
// every eviction. Only pods whose successors are made first get away.
func budgetsThatNeverAllow(s Snapshot) (found []Finding) {
	if s.Deployments == nil {
		return nil // not known: every Deployment might surge
	}
	for _, b := range s.Budgets {
		covered := s.covered(b)
		if len(covered) == 0 || b.Status.ExpectedPods == 0 || b.Status.ExpectedPods > b.Status.DesiredHealthy {
			continue
		}
		stuck := slices.DeleteFunc(covered, s.canSurge)
		if len(stuck) == 0 {
			continue
		}
		found = append(found, Finding{
			Namespace: b.Namespace, Object: "poddisruptionbudget/" + b.Name, Pods: len(stuck),
			What: fmt.Sprintf("never allows an eviction: %d of %d pods have to be healthy", b.Status.DesiredHealthy, b.Status.ExpectedPods),
			Why:  fmt.Sprintf("%s of %s cannot be evicted, and end with their node", pods(len(stuck)), owners(stuck)),
			Fix:  fmt.Sprintf(`kubectl -n %s patch poddisruptionbudget %s --type=merge -p '{"spec":{"minAvailable":null,"maxUnavailable":1}}'`, b.Namespace, b.Name),
		})
	}
	return found
}

// podsWithTwoBudgets: the API server evicts no pod that two budgets cover.
func podsWithTwoBudgets(s Snapshot) (found []Finding) {
	type pair struct{ namespace, first, second string }
	both := map[pair][]Pod{}
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
			Fix:  fmt.Sprintf("kubectl -n %s delete poddisruptionbudget %s", of.namespace, of.second),
		})
	}
	return found
}

// covered are the pods that a budget selects.
func (s Snapshot) covered(b *policyv1.PodDisruptionBudget) (covered []Pod) {
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
func owners(list []Pod) string {
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
