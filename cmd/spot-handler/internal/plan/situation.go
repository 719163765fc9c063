package plan

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
)

// wavesFor is how old the waves can be, as in the drain.
const wavesFor = 250 * time.Millisecond

// situation is what the drain would plan the node with.
func (w *world) situation(l *lostNode) drain.Situation {
	s := drain.Situation{
		Interruption: drain.Interruption{
			Taint: marks.Taint(interruption.Record{Kind: l.Kind}), Since: l.noticed, Deadline: l.deadline, Capacity: l.capacity,
		},
		Policy: w.in.Policy, Waves: w.waves, Ready: l.ready, Shared: w.in.Shared, Surroundings: map[string]drain.Surroundings{},
		Workloads: map[types.NamespacedName]drain.Workload{}, AllReady: map[types.NamespacedName]time.Time{},
		Refused: map[types.UID]bool{}, Fixed: l.fixed, Namespaces: map[string]drain.Wishes{},
	}
	namespaces := map[string]bool{}
	for _, uid := range slices.Sorted(maps.Keys(l.pods)) {
		p := l.pods[uid]
		s.Pods = append(s.Pods, p.Pod)
		if !namespaces[p.Namespace] {
			namespaces[p.Namespace] = true
			s.Surroundings[p.Namespace], s.Namespaces[p.Namespace] = w.around[p.Namespace], w.in.Namespaces[p.Namespace]
			for _, b := range w.budgets[p.Namespace] {
				s.Budgets = append(s.Budgets, b.PodDisruptionBudget)
			}
		}
		if of := p.workload; of != nil && of.of.Name != "" {
			s.Workloads[of.of] = w.count(of)
			s.AllReady[of.of] = w.allReady(of)
		}
	}
	for uid := range l.refused {
		s.Refused[uid] = true
	}
	return s
}

// count is what plans are made with of a Deployment.
func (w *world) count(of *workload) drain.Workload {
	if of.counted {
		return of.count
	}
	var pods []*corev1.Pod
	for _, uid := range slices.Sorted(maps.Keys(of.pods)) {
		pods = append(pods, of.pods[uid].Pod)
	}
	count, next := of.tally.Workload(w.now, of.deployment, pods)
	if !next.IsZero() {
		w.at(next, podsFirst, func() {
			of.counted = false
			for l := range of.users {
				w.plan(l)
			}
		})
	}
	of.count, of.counted = count, true
	return count
}

// allReady is since when the replacements of all nodes with pods of the workload are Ready; zero if
// some are not.
func (w *world) allReady(of *workload) (since time.Time) {
	for l := range of.users {
		switch {
		case l.over:
		case l.ready.IsZero():
			return time.Time{}
		case l.ready.After(since):
			since = l.ready
		}
	}
	return since
}

// renewWaves works out the latest starts of pods that share a budget.
func (w *world) renewWaves() {
	if w.in.Policy.Strategy == drain.AtOnce || !w.startsFrom.IsZero() && w.now.Sub(w.startsFrom) < wavesFor {
		return
	}
	w.startsFrom = w.now
	var budgets []*policyv1.PodDisruptionBudget
	for _, all := range w.budgets {
		for _, b := range all {
			if len(b.users) > 0 && b.Status.ExpectedPods > b.Status.DesiredHealthy {
				budgets = append(budgets, b.PodDisruptionBudget)
			}
		}
	}
	if len(budgets) == 0 {
		w.waves = drain.Waves{}
		return
	}
	var situations []drain.Situation
	for _, l := range w.lost {
		if l.begun && !l.over {
			situations = append(situations, w.situation(l))
		}
	}
	fresh := drain.PlanWaves(w.now, situations, budgets)
	for _, l := range w.lost {
		for uid := range l.pods {
			before, was := w.waves.Starts[uid]
			if at, is := fresh.Starts[uid]; is && (!was || at != before) {
				w.plan(l)
			}
		}
	}
	w.waves = fresh
}
