package drain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// A refused pod is tried again every few seconds, and as soon as its budget allows it.
func TestRefusedPodWakesWithItsBudget(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		p := pod("a", withGrace(30))
		p.Labels = map[string]string{"app": "web"}
		f.pod(p)
		f.budget(budget("web", 1))
		f.answer = refuseEvictions
	}, func(s *scene) {
		s.pass(20 * time.Second)
		n := s.api.count("POST", "/eviction")
		if n < 5 || n > 15 {
			s.Errorf("%d tries in 20 s, want some, with backoff", n)
		}
		if s.now().Refusal != "no needs 10" || len(s.events.list) != 1 {
			s.Errorf("refusal %q, events %q; want the API server's words, once", s.now().Refusal, s.events.list)
		}
		s.api.mu.Lock()
		s.api.answer = nil
		s.api.mu.Unlock()
		b := budget("web", 1)
		b.Status.DisruptionsAllowed = 1
		s.api.budget(b)
		s.pass(0)
		if got := s.api.count("POST", "/eviction"); got != n+1 {
			s.Errorf("%d tries when the budget allows it, want one at once", got-n)
		}
	})
}

// A tenant's budgets are kept up to a bound, and those of other namespaces beside them.
func TestBudgetsAreBounded(t *testing.T) {
	const objects = 100
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		p := pod("a", withGrace(30))
		p.Labels = map[string]string{"app": "web"}
		f.pod(p)
		for i := range objects {
			large := budget(fmt.Sprint("large-", i), 1)
			large.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web", "large": strings.Repeat("x", budgetBytes/objects*2)}}
			f.budget(large)
		}
		f.answer = refuseEvictions
	}, func(s *scene) {
		s.pass(time.Second)
		kept := func() (whole, all int) {
			for _, b := range s.d.budgets.list("shop") {
				all++
				if b.Spec.Selector != nil {
					whole++
				}
			}
			return whole, all
		}
		if whole, all := kept(); all != objects || whole == 0 || whole > objects/2 {
			s.Errorf("%d of %d budgets are kept whole, want less than half of %d", whole, all, objects)
		}
	})
}
