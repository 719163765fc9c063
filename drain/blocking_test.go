package drain

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
)

func TestMostBlocking(t *testing.T) {
	if diff := cmp.Diff(map[string]int{"": 0}, mostBlocking(map[string]int{})); diff != "" {
		t.Errorf("nothing blocks (-want +got):\n%s", diff)
	}
	few := map[string]int{"": 2, "shop/db": 3}
	if diff := cmp.Diff(maps.Clone(few), mostBlocking(few)); diff != "" {
		t.Errorf("few (-want +got):\n%s", diff)
	}
	// Whatever names budgets, there are not more than so many series, and no pod is
	// missing from their sum.
	many := map[string]int{"shop/db": 7}
	for i := range 1000 {
		many[fmt.Sprint("shop/", i)] = 1
	}
	got := mostBlocking(many)
	sum := 0
	for _, n := range got {
		sum += n
	}
	if len(got) != maxBudgets+2 || sum != 1007 || got["shop/db"] != 7 || got[otherBudgets] != 1001-maxBudgets {
		t.Errorf("%d series, %d pods, %d of other budgets, %d of shop/db", len(got), sum, got[otherBudgets], got["shop/db"])
	}
}

// A pod counts for the only budget of its namespace that covers it.
func TestBudgetOf(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		f.pod(pod("a", withGrace(30)))
		data := budget("data", 1)
		data.Spec.Selector.MatchLabels = map[string]string{"tier": "data"}
		for _, b := range []*policyv1.PodDisruptionBudget{budget("web", 1), budget("db", 1), data} {
			f.budget(b)
		}
	}, func(s *scene) {
		s.pass(time.Second)
		for want, of := range map[string]map[string]string{
			"shop/db":   {"app": "db"},
			"shop/data": {"app": "cache", "tier": "data"},
		} {
			if got := budgetOf(s.d.budgets.of(pod("a", func(p *corev1.Pod) { p.Labels = of }))); got != want {
				s.Errorf("%v: %q, want %q", of, got, want)
			}
		}
		for _, of := range []map[string]string{nil, {"app": "cache"}, {"app": "db", "tier": "data"}} {
			if got := budgetOf(s.d.budgets.of(pod("a", func(p *corev1.Pod) { p.Labels = of }))); got != noBudget {
				s.Errorf("%v: %q, want no budget", of, got)
			}
		}
		elsewhere := pod("a", inNamespace("other"), func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} })
		if got := budgetOf(s.d.budgets.of(elsewhere)); got != noBudget {
			s.Errorf("in a namespace whose budgets are not read: %q, want no budget", got)
		}
	})
}

func TestOverlong(t *testing.T) {
	now := time.Now()
	watch := watchOf(t, pod("longest", withGrace(110)), pod("too-long", withGrace(111)), pod("daemon", withGrace(600), ownedBy("DaemonSet")))
	for _, tt := range []struct {
		name     string
		deadline time.Time
		want     int
	}{
		{"two minutes", now.Add(2 * time.Minute), 1},
		{"heard late: not the pod's fault", now.Add(20 * time.Second), 1},
		{"a window of days", now.Add(48 * time.Hour), 0},
		{"no deadline", time.Time{}, 0},
	} {
		s := &session{watch: watch, known: now, in: plan.NodeState{Deadline: tt.deadline}}
		if got := s.overlong(10 * time.Second); got != tt.want {
			t.Errorf("%s: %d pods, want %d", tt.name, got, tt.want)
		}
	}
}

func TestBlockedBy(t *testing.T) {
	web := pod("web", of("web"))
	s := &session{tracked: map[types.UID]*tracked{
		"waiting": {pod: web, refusal: "the budget", ofBudget: true},
		"denied":  {pod: web, refusal: "a webhook"},
		"going":   {pod: web, refusal: "the budget", ofBudget: true, sent: evicted},
		"free":    {pod: web},
		"left":    {pod: web, refusal: "the budget", ofBudget: true, gone: true},
	}}
	known := &budgetWatch{}
	known.sharedWatch = newSharedWatch(func(string) {}, func(context.Context, string) *rewatch.Watch[*policyv1.PodDisruptionBudget] {
		w := rewatch.New(rewatch.Options[*policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudget]{
			Source:  &cache.ListWatch{},
			Keep:    func(b *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget { return b },
			Changed: func(_, _ *policyv1.PodDisruptionBudget) {},
		})
		if err := w.Add(budget("web", 1)); err != nil {
			t.Fatal(err)
		}
		return w
	})
	known.use(t.Context(), "node-1", "shop")
	d := &Drainer{sessions: map[string]*session{"node-1": s}, budgets: known}
	if diff := cmp.Diff(map[string]int{noBudget: 1, "shop/web": 1}, d.blockedBy()); diff != "" {
		t.Errorf("refused pods (-want +got):\n%s", diff)
	}
	if d.blockedPods() != 2 {
		t.Errorf("%v blocked, want the same", d.blockedPods())
	}
}
