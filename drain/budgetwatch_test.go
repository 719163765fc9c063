package drain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// A refused pod is tried again every few seconds, and as soon as its budget allows it.
func TestRefusedPodWakesWithItsBudget(t *testing.T) {
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
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
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
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

// TestCovers compares budgets with a pod that is about to be surged.
func TestCovers(t *testing.T) {
	pod := labels.Set{"app": "web", hashLabel: "abc12"}
	in := func(key string, op metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	for name, tt := range map[string]struct {
		selector      *metav1.LabelSelector
		covers, loses bool
	}{
		"none":                        {nil, false, false},
		"empty: the whole namespace":  {&metav1.LabelSelector{}, true, false},
		"its label":                   {&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, true, false},
		"another value":               {&metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, false, false},
		"a label that it lacks":       {&metav1.LabelSelector{MatchLabels: map[string]string{"team": ""}}, false, false},
		"an expression that is true":  {in("team", metav1.LabelSelectorOpDoesNotExist), true, false},
		"an expression that is not":   {in("team", metav1.LabelSelectorOpExists), false, false},
		"its hash":                    {&metav1.LabelSelector{MatchLabels: map[string]string{hashLabel: "abc12"}}, true, true},
		"its hash, as an expression":  {in(hashLabel, metav1.LabelSelectorOpIn, "abc12"), true, true},
		"another hash":                {in(hashLabel, metav1.LabelSelectorOpIn, "def34"), false, false},
		"only pods that are surged":   {in(SurgedLabel, metav1.LabelSelectorOpExists), false, true},
		"only pods that are not":      {in(SurgedLabel, metav1.LabelSelectorOpDoesNotExist), true, true},
		"any hash":                    {in(hashLabel, metav1.LabelSelectorOpExists), true, false},
		"what the API server refuses": {in("app", "Like", "w%"), false, false},
	} {
		budget := &policyv1.PodDisruptionBudget{Spec: policyv1.PodDisruptionBudgetSpec{Selector: tt.selector}}
		if got := covers(budget, pod); got != tt.covers {
			t.Errorf("%s: covers %t, want %t", name, got, tt.covers)
		}
		if got := LosesSurged(budget, pod); got != tt.loses {
			t.Errorf("%s: lost when surged %t, want %t", name, got, tt.loses)
		}
	}
}
