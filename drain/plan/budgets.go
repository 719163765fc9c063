package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// budgetIndex finds the disruption budgets that cover a pod, without comparing it with each of its namespace,
// which can have hundreds.
type budgetIndex struct {
	byLabel map[labelOf][]*policyv1.PodDisruptionBudget // one of those that the budget demands
	others  map[string][]*policyv1.PodDisruptionBudget  // by namespace: they demand none
}

type labelOf struct{ namespace, key, value string }

func indexBudgets(budgets []*policyv1.PodDisruptionBudget) budgetIndex {
	x := budgetIndex{map[labelOf][]*policyv1.PodDisruptionBudget{}, map[string][]*policyv1.PodDisruptionBudget{}}
	for _, b := range budgets {
		if b.Spec.Selector == nil {
			continue // it covers none
		}
		if len(b.Spec.Selector.MatchLabels) == 0 {
			x.others[b.Namespace] = append(x.others[b.Namespace], b)
			continue
		}
		key := slices.Min(slices.Collect(maps.Keys(b.Spec.Selector.MatchLabels)))
		of := labelOf{b.Namespace, key, b.Spec.Selector.MatchLabels[key]}
		x.byLabel[of] = append(x.byLabel[of], b)
	}
	return x
}

// covering are those that cover the pod, by name.
func (x budgetIndex) covering(pod *corev1.Pod) (list []*policyv1.PodDisruptionBudget) {
	for key, value := range pod.Labels {
		for _, b := range x.byLabel[labelOf{pod.Namespace, key, value}] {
			if covers(b, pod.Labels) {
				list = append(list, b)
			}
		}
	}
	for _, b := range x.others[pod.Namespace] {
		if covers(b, pod.Labels) {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b *policyv1.PodDisruptionBudget) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// covers reports whether the budget counts pods with the labels. Pods are compared with many
// budgets, so only the rare selector with expressions is compiled.
func covers(budget *policyv1.PodDisruptionBudget, pod labels.Set) bool {
	of := budget.Spec.Selector
	if of == nil {
		return false
	}
	for key, value := range of.MatchLabels {
		if has, ok := pod[key]; !ok || has != value {
			return false
		}
	}
	if len(of.MatchExpressions) == 0 {
		return true
	}
	selector, err := metav1.LabelSelectorAsSelector(of)
	return err == nil && selector.Matches(pod)
}

// LosesSurged reports whether a disruption budget covers a pod with these labels only before, or
// only after it is surged.
func LosesSurged(budget *policyv1.PodDisruptionBudget, pod labels.Set) bool {
	return reads(budget.Spec.Selector, HashLabel, SurgedLabel) && covers(budget, pod) != covers(budget, labelsOnceSurged(pod))
}

// reads reports whether the selector depends on one of the labels.
func reads(of *metav1.LabelSelector, keys ...string) bool {
	return of != nil && slices.ContainsFunc(keys, func(key string) bool {
		_, ok := of.MatchLabels[key]
		return ok || slices.ContainsFunc(of.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == key })
	})
}

// Only here are pods deleted without asking a disruption budget: because it has already
// agreed, because the operator has said so, or because the pod's owner has no use for it.

// The API server grants an eviction in one step, by charging the budget and noting
// the pod in its status.disruptedPods, and carries it out in a second, by deleting the
// pod. If the client is killed in between, the request ends there: the pod lives on, the
// budget stays charged for two minutes, which is all the time there is, and every further
// eviction is refused. What was granted is allowed, so we carry it out.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go

// grantedFor is how old a grant has to be: a request that is still under way carries it out
// by itself, within milliseconds.
const grantedFor = 2 * time.Second

// granted reports whether one of the budgets that cover the pod has already been charged for it.
func granted(pod *corev1.Pod, budgets []*policyv1.PodDisruptionBudget, now time.Time) bool {
	for _, budget := range budgets {
		// The budget knows names only: it might have been charged for a StatefulSet's earlier pod.
		at, charged := budget.Status.DisruptedPods[pod.Name]
		if charged && now.Sub(at.Time) >= grantedFor && !at.Time.Before(pod.CreationTimestamp.Time) {
			return true
		}
	}
	return false
}

// forbidden names a budget of the pod that never lets any go, or is empty.
func (p *planner) forbidden(pod *corev1.Pod) string {
	for _, budget := range p.Budgets {
		if budget.Namespace == pod.Namespace && covers(budget, pod.Labels) && budget.Status.ExpectedPods > 0 && waveSize(budget) <= 0 {
			return "its PDB " + budget.Name + " never lets any go"
		}
	}
	return ""
}

// waveSize is how many pods the budget lets go at a time; zero or less if it never lets any
// go.
func waveSize(budget *policyv1.PodDisruptionBudget) int {
	return int(budget.Status.ExpectedPods - budget.Status.DesiredHealthy)
}
