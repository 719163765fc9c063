package plan

import (
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/drain/plan"
)

// budget is a disruption budget, with its status as the disruption controller keeps it.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/disruption/disruption.go
type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
	pods     map[types.UID]*pod
	users    map[*lostNode]bool
	failed   bool // its status cannot be worked out, for the reason that its condition gives
	awaited  bool // the disruption controller is about to bring the status up to date

	since   time.Time
	healthy int // since then
	report  Budget
}

func newBudget(b *policyv1.PodDisruptionBudget) *budget {
	c := meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil { // the API server has checked it
		selector = labels.Nothing()
	}
	return &budget{
		PodDisruptionBudget: b.DeepCopy(),
		selector:            selector,
		pods:                map[types.UID]*pod{},
		users:               map[*lostNode]bool{},
		failed:              c != nil && c.Status == metav1.ConditionFalse && c.Reason == policyv1.SyncFailedReason,
		report:              Budget{Namespace: b.Namespace, Name: b.Name},
	}
}

func (b *budget) begin(w *world) {
	b.since, b.healthy = w.now, b.countHealthy()
	b.PodDisruptionBudget = b.asCounted()
	b.report.Healthy = b.healthy
	b.report.FewestHealthy = b.report.Healthy
	b.report.Desired = int(b.Status.DesiredHealthy)
}

// changed notes how many of the budget's pods are healthy now, and has the disruption controller see it.
func (b *budget) changed(w *world) {
	b.account(w)
	if b.awaited {
		return
	}
	b.awaited = true
	w.at(w.now.Add(react), thenControllers, func() {
		b.awaited = false
		b.show(w, b.asCounted())
	})
}

// account adds up what was missing since the last change.
func (b *budget) account(w *world) {
	b.report.UnavailablePodSeconds += float64(max(0, int(b.Status.DesiredHealthy)-b.healthy)) * w.now.Sub(b.since).Seconds()
	b.since, b.healthy = w.now, b.countHealthy()
	if b.healthy < b.report.FewestHealthy {
		b.report.FewestHealthy, b.report.At = b.healthy, w.offset(w.now)
	}
}

func (b *budget) countHealthy() (healthy int) {
	for _, p := range b.pods {
		if Serves(p.Pod) {
			healthy++
		}
	}
	return healthy
}

// show replaces what the API shows of the budget.
func (b *budget) show(w *world, next *policyv1.PodDisruptionBudget) {
	before := b.PodDisruptionBudget
	if reflect.DeepEqual(before.Status, next.Status) {
		return
	}
	b.PodDisruptionBudget = next
	if w.watched[plan.Subject{Kind: plan.Budgets, Name: types.NamespacedName{Namespace: b.Namespace}}] {
		w.apply(plan.BudgetSeen{Before: before, After: next})
	}
}

// charge is what the API server does to the status for an eviction that the budget allows: the disruption
// controller sees the pod go a moment later.
func (b *budget) charge(w *world) {
	next := *b.PodDisruptionBudget
	next.Status.DisruptionsAllowed--
	b.show(w, &next)
}

// asCounted is the budget with the status that the disruption controller gives it. How many pods are expected,
// and how many of them have to be healthy, follows from what controllers ask for, which stays the same; only where
// the budget names a number of pods, those that are there are expected.
func (b *budget) asCounted() *policyv1.PodDisruptionBudget {
	next := *b.PodDisruptionBudget
	if least := b.Spec.MinAvailable; least != nil && least.Type == intstr.Int {
		next.Status.ExpectedPods = int32(len(b.pods))
	}
	next.Status.CurrentHealthy, next.Status.DisruptionsAllowed = int32(b.healthy), 0
	if !b.failed && next.Status.ExpectedPods > 0 {
		next.Status.DisruptionsAllowed = max(0, next.Status.CurrentHealthy-next.Status.DesiredHealthy)
	}
	return &next
}

// evict is the API server's answer to an eviction: the refusal, or "" and the budget that is charged, if one is.
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
		return "", b
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
