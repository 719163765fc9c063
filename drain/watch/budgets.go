package watch

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
)

// budgetBytes is how much is kept of the budgets of one namespace, in the API's binary encoding:
// thousands of ordinary ones. Of the others only the names are kept: the API server enforces them
// all the same, but nobody's turn is planned by them.
const budgetBytes = 1 << 20

// watchBudgets watches the disruption budgets of a namespace.
func (c *Cluster) watchBudgets(ctx context.Context, namespace string, report func(plan.Event)) {
	sizes := newBudgetSizes()
	w := rewatch.New(rewatch.Options[*policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudget]{
		Source: cache.NewListWatchFromClient(c.opts.Budgets, "poddisruptionbudgets", namespace, fields.Everything()),
		Keep:   sizes.keep,
		Changed: func(before, after *policyv1.PodDisruptionBudget) {
			if after == nil {
				sizes.set(before.Name, 0)
			}
			report(plan.BudgetSeen{Before: before, After: after})
		},
		Synced: func() { report(plan.BudgetsListed{Namespace: namespace}) },
		Logger: c.opts.Logger,
	})
	go w.Run(ctx)
}

// boundedSizes adds up the sizes of objects that are kept.
type boundedSizes struct {
	most int
	of   map[string]int // by name
	sum  int
}

func newBudgetSizes() *boundedSizes { return &boundedSizes{most: budgetBytes, of: map[string]int{}} }

// keep is what is kept of a budget.
func (s *boundedSizes) keep(budget *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	if s.set(budget.Name, budget.Size()) {
		return budget
	}
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{
		Namespace:       budget.Namespace,
		Name:            budget.Name,
		UID:             budget.UID,
		ResourceVersion: budget.ResourceVersion,
	}}
}

// set says how large an object is now, 0 if it is gone, and reports whether it can be kept.
func (s *boundedSizes) set(name string, size int) bool {
	s.sum -= s.of[name]
	delete(s.of, name)
	if size == 0 || s.sum+size > s.most {
		return false
	}
	s.of[name] = size
	s.sum += size
	return true
}
