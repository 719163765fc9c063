package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/drain"
)

// budget is a disruption budget, and those that it covers of the pods to be moved.
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
	covers   []*Pod
}

func (b budget) object() Owned { return Owned{b.Namespace, "poddisruptionbudget/" + b.Name} }

func (b budget) patch(spec string) string {
	return b.object().kubectl("patch", "--type=merge", "-p", `{"spec":{`+spec+"}}")
}

// budgetsThatNeverAllow: as many pods as there are have to be healthy, so the API server refuses
// every eviction. Only pods whose replacement pods are made first get away.
func budgetsThatNeverAllow(_ Snapshot, b budget) []Finding {
	if b.Status.ExpectedPods == 0 || b.Status.ExpectedPods > b.Status.DesiredHealthy {
		return nil
	}
	stuck := slices.DeleteFunc(slices.Clone(b.covers), func(p *Pod) bool { return p.Surges })
	if len(stuck) == 0 {
		return nil
	}
	return []Finding{{
		Pods: len(stuck),
		What: fmt.Sprintf("never allows an eviction: %d of %d pods have to be healthy", b.Status.DesiredHealthy, b.Status.ExpectedPods),
		Why:  fmt.Sprintf("%s of %s cannot be evicted, and end with their node", console.Count(len(stuck), "pod"), owners(stuck)),
		Fix:  b.patch(`"minAvailable":null,"maxUnavailable":1`),
	}}
}

// podsWithTwoBudgets: the API server evicts no pod that two budgets cover.
func podsWithTwoBudgets(s Snapshot) (found []Finding) {
	type pair struct{ first, second Owned }
	both := map[pair][]*Pod{}
	theirs := map[*Pod]Owned{} // the first of each pod
	for _, b := range s.budgets {
		for _, p := range b.covers {
			first, taken := theirs[p]
			if !taken {
				theirs[p] = b.object()
				continue
			}
			both[pair{first, b.object()}] = append(both[pair{first, b.object()}], p)
		}
	}
	for of, covered := range both {
		_, first, _ := strings.Cut(of.first.Object, "/")
		found = append(found, Finding{
			Namespace: of.second.Namespace, Object: of.second.Object, Pods: len(covered),
			What: fmt.Sprintf("covers %s that budget %s covers too", console.Count(len(covered), "pod"), first),
			Why:  fmt.Sprintf("the API server evicts no pod with two budgets: those of %s end with their node", owners(covered)),
			Fix:  of.second.kubectl("delete"),
		})
	}
	return found
}

// budgetsThatSelectNothing: its author believes that pods are covered, and all of them can be
// evicted at once.
func budgetsThatSelectNothing(s Snapshot, b budget) []Finding {
	counted := b.Status.ObservedGeneration >= b.Generation
	idle := slices.ContainsFunc(s.Idle[b.Namespace], func(l labels.Set) bool { return b.selector.Matches(l) }) // nobody wants its pods at the moment
	if !counted || b.Status.ExpectedPods > 0 || len(s.in[b.Namespace]) == 0 || len(b.covers) > 0 || idle {
		return nil
	}
	f := Finding{
		What: "selects no pod", Why: "the pods that it is for can all be evicted at the same moment",
		Fix: b.object().kubectl("delete"),
	}
	if labels, n := s.meant(b); n > 0 {
		f.Pods, f.Fix = n, b.patch(fmt.Sprintf(`"selector":{"matchLabels":%s}`, labels))
	}
	return []Finding{f}
}

// meant finds the workload of the budget's own name, and what the budget's labels would have to
// be for its pods, as JSON.
func (s Snapshot) meant(b budget) (text string, pods int) {
	if b.Spec.Selector == nil || len(b.Spec.Selector.MatchLabels) == 0 || len(b.Spec.Selector.MatchExpressions) > 0 {
		return "", 0
	}
	theirs := slices.DeleteFunc(slices.Clone(s.in[b.Namespace]), func(p *Pod) bool {
		_, name, _ := strings.Cut(p.Owner.Object, "/")
		return name != b.Name
	})
	if len(theirs) == 0 {
		return "", 0
	}
	wanted := map[string]string{}
	for key := range b.Spec.Selector.MatchLabels {
		value, ok := theirs[0].Labels[key]
		if !ok {
			return "", 0
		}
		wanted[key] = value
	}
	for _, p := range theirs {
		if !labels.SelectorFromSet(wanted).Matches(labels.Set(p.Labels)) {
			return "", 0
		}
	}
	return asJSON(wanted), len(theirs)
}

// hashLabel is what a surge changes of a pod.
const hashLabel = "pod-template-hash"

// budgetsThatSelectByHash: the budget would cover other pods once some are surged, so none is.
func budgetsThatSelectByHash(s Snapshot, b budget) []Finding {
	held := slices.DeleteFunc(slices.Clone(s.in[b.Namespace]), func(p *Pod) bool {
		return !p.Surges || p.Labels[hashLabel] == "" || !drain.LosesSurged(b.PodDisruptionBudget, p.Labels)
	})
	if len(held) == 0 {
		return nil
	}
	return []Finding{{
		Pods: len(held), What: "selects by " + hashLabel + ", which a surge changes",
		Why: fmt.Sprintf("the pods of %s are not surged: they leave before their replacement pods are ready", owners(held)),
		Fix: b.withoutHash(),
	}}
}

// withoutHash lets a budget select by what else it selects by. If that is nothing, it would cover
// every pod of its namespace.
func (b budget) withoutHash() string {
	rest := b.Spec.Selector.DeepCopy()
	maps.DeleteFunc(rest.MatchLabels, func(key, _ string) bool { return isHash(key) })
	rest.MatchExpressions = slices.DeleteFunc(rest.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return isHash(r.Key) })
	if len(rest.MatchLabels)+len(rest.MatchExpressions) == 0 {
		return b.object().kubectl("delete")
	}
	return b.object().kubectl("patch", "--type=json", "-p", fmt.Sprintf(`[{"op":"replace","path":"/spec/selector","value":%s}]`, asJSON(rest)))
}

func isHash(key string) bool { return key == hashLabel || key == drain.SurgedLabel }

// owners names the workloads of pods.
func owners(list []*Pod) string {
	names := map[string]bool{}
	for _, p := range list {
		names[p.Owner.Object] = true
	}
	return strings.Join(console.Some(slices.Sorted(maps.Keys(names)), 3), ", ")
}
