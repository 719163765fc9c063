package plan

import "spot-handler/handler/interruption"

// RefusedPods counts the pods that are refused at this moment, by their disruption budget: its NAMESPACE/NAME, or
// nothing if no single one refuses them.
func (f *Fleet) RefusedPods() map[string]int {
	counts := map[string]int{}
	for _, n := range f.nodes {
		for _, t := range n.tracked {
			if t.refusal == "" || !t.stays() {
				continue
			}
			name := ""
			if t.ofBudget {
				if budgets := f.budgetsOf(t.pod); len(budgets) == 1 {
					name = budgets[0].Namespace + "/" + budgets[0].Name
				}
			}
			counts[name]++
		}
	}
	return counts
}

// OverlongPods counts the pods that have to leave and whose grace period and margin are longer
// than the whole time available: no drain can end them cleanly. That time is never taken as shorter than
// SpotNotice: a process that started late, or heard late, is not the pod's fault.
func (f *Fleet) OverlongPods() (count int) {
	for _, n := range f.nodes {
		if !n.draining || n.state.Deadline.IsZero() || n.known.IsZero() {
			continue
		}
		window := max(interruption.SpotNotice, n.state.Deadline.Sub(n.known))
		sit := Situation{NodeState: n.state}
		for _, pod := range n.pods {
			if sit.notOurs(pod) == "" && Grace(pod)+f.policy.Margin > window {
				count++
			}
		}
	}
	return count
}
