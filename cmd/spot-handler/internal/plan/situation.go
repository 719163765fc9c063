package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/marks"
)

// wavesFor is how old the waves can be, as in the drain.
const wavesFor = 250 * time.Millisecond

// situation is what the drain would plan the node with.
func (w *world) situation(l *lostNode) plan.Situation {
	s := plan.Situation{
		NodeState: plan.NodeState{
			Taint: marks.Taint(interruption.Record{Kind: l.Kind}), Since: l.Noticed, Deadline: l.Deadline, Capacity: l.Capacity,
		},
		Policy:      w.in.Policy,
		Waves:       w.waves,
		Ready:       l.ready,
		Shared:      w.in.Shared,
		Constraints: map[string]plan.NamespaceConstraints{},
		Deployments: map[types.NamespacedName]plan.DeploymentState{},
		AllReady:    map[types.NamespacedName]time.Time{},
		Refused:     map[types.UID]bool{},
		Fixed:       l.fixed,
		Namespaces:  map[string]plan.Preferences{},
	}
	namespaces := map[string]bool{}
	for _, uid := range slices.Sorted(maps.Keys(l.pods)) {
		p := l.pods[uid]
		s.Pods = append(s.Pods, p.Pod)
		if !namespaces[p.Namespace] {
			namespaces[p.Namespace] = true // a namespace that asks for nothing, or has nothing around, is known too
			s.Constraints[p.Namespace], s.Namespaces[p.Namespace] = w.in.Constraints[p.Namespace], w.in.Namespaces[p.Namespace]
			for _, b := range w.budgets[p.Namespace] {
				s.Budgets = append(s.Budgets, b.PodDisruptionBudget)
			}
		}
		if of := p.workload; of != nil && of.of.Name != "" {
			s.Deployments[of.of] = w.count(of)
			s.AllReady[of.of] = w.allReady(of)
		}
	}
	for uid := range l.refused {
		s.Refused[uid] = true
	}
	return s
}

// count is what plans are made with of a Deployment.
func (w *world) count(of *workload) plan.DeploymentState {
	if of.counted {
		return of.count
	}
	var pods []*plan.Replica
	for _, p := range of.pods {
		if p.member == nil {
			p.member = plan.ReplicaOf(p.Pod)
		}
		pods = append(pods, p.member)
	}
	count, next := of.ledger.State(w.now, of.deployment, pods)
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

// renewWaves works out the eviction deadlines of pods that share a budget.
func (w *world) renewWaves() {
	if w.in.Policy.Strategy == plan.StrategyAtOnce || !w.startsFrom.IsZero() && w.now.Sub(w.startsFrom) < wavesFor {
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
		w.waves = plan.Waves{}
		return
	}
	var situations []plan.Situation
	for _, l := range w.lost {
		if l.begun && !l.over {
			situations = append(situations, w.situation(l))
		}
	}
	fresh := plan.PlanWaves(w.now, situations, budgets)
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

// budget is a disruption budget, with its status as the disruption controller keeps it.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/disruption/disruption.go
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
	pods     map[types.UID]*pod
	users    map[*lostNode]bool
	failed   bool // its status cannot be worked out, for the reason that its condition gives

	// free is when the next eviction under the budget is answered: each writes its status, and so
	// does the disruption controller in between.
	free time.Time

	since  time.Time
	report Budget
}

// perEviction is how long one eviction under a budget holds up the next.
const perEviction = 200 * time.Millisecond

func newBudget(b *policyv1.PodDisruptionBudget) *budget {
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil { // the API server has checked it
		selector = labels.Nothing()
	}
	return &budget{
		PodDisruptionBudget: b.DeepCopy(), selector: selector, pods: map[types.UID]*pod{}, users: map[*lostNode]bool{},
		failed: c != nil && c.Status == metav1.ConditionFalse && c.Reason == policyv1.SyncFailedReason,
		report: Budget{Namespace: b.Namespace, Name: b.Name},
	}
}

func (b *budget) begin(w *world) {
	b.since = w.now
	b.count()
	b.report.Healthy = int(b.Status.CurrentHealthy)
	b.report.FewestHealthy = b.report.Healthy
	b.report.Desired = int(b.Status.DesiredHealthy)
}

// update brings the status up to date, and lets refused evictions be tried again.
func (b *budget) update(w *world) {
	b.report.UnavailablePodSeconds += float64(max(0, b.Status.DesiredHealthy-b.Status.CurrentHealthy)) * w.now.Sub(b.since).Seconds()
	b.since = w.now
	b.count()
	if healthy := int(b.Status.CurrentHealthy); healthy < b.report.FewestHealthy {
		b.report.FewestHealthy, b.report.At = healthy, w.offset(w.now)
	}
	if b.Status.DisruptionsAllowed > 0 {
		for l := range b.users {
			w.plan(l)
		}
	}
}

// count brings the status up to date. How many pods are expected, and how many of them have to be healthy,
// follows from what controllers ask for, which stays the same; only where the budget names a number of pods, those that are
// there are expected.
func (b *budget) count() {
	healthy := 0
	for _, p := range b.pods {
		if Serves(p.Pod) {
			healthy++
		}
	}
	if least := b.Spec.MinAvailable; least != nil && least.Type == intstr.Int {
		b.Status.ExpectedPods = int32(len(b.pods))
	}
	b.Status.CurrentHealthy, b.Status.DisruptionsAllowed = int32(healthy), 0
	if !b.failed && b.Status.ExpectedPods > 0 {
		b.Status.DisruptionsAllowed = max(0, b.Status.CurrentHealthy-b.Status.DesiredHealthy)
	}
}

// evict is the API server's answer to an eviction: the refusal, or "".
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/registry/core/pod/storage/eviction.go
func (w *world) evict(p *pod) (refusal string, by *budget) {
	if p.Status.Phase == corev1.PodPending || len(p.budgets) == 0 {
		return "", nil
	}
	if len(p.budgets) > 1 {
		return "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.", nil
	}
	b := p.budgets[0]
	s := b.Status
	if _, ready := plan.Ready(p.Pod); !ready {
		policy := b.Spec.UnhealthyPodEvictionPolicy
		if policy != nil && *policy == policyv1.AlwaysAllow || s.CurrentHealthy >= s.DesiredHealthy && s.DesiredHealthy > 0 {
			return "", nil
		}
	}
	if s.DisruptionsAllowed > 0 {
		return "", nil
	}
	text := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	switch {
	case b.failed:
		text += " because it failed sync: " + meta.FindStatusCondition(s.Conditions, policyv1.DisruptionAllowedCondition).Message
	case s.CurrentHealthy <= s.DesiredHealthy:
		text = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name, s.DesiredHealthy, s.CurrentHealthy)
	}
	return "Cannot evict pod as it would violate the pod's disruption budget. " + text, b
}
