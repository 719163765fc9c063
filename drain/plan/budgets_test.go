package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestCovers compares budgets with a pod that is about to be surged.
func TestCovers(t *testing.T) {
	pod := labels.Set{"app": "web", HashLabel: "abc12"}
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
		"its hash":                    {&metav1.LabelSelector{MatchLabels: map[string]string{HashLabel: "abc12"}}, true, true},
		"its hash, as an expression":  {in(HashLabel, metav1.LabelSelectorOpIn, "abc12"), true, true},
		"another hash":                {in(HashLabel, metav1.LabelSelectorOpIn, "def34"), false, false},
		"only pods that are surged":   {in(SurgedLabel, metav1.LabelSelectorOpExists), false, true},
		"only pods that are not":      {in(SurgedLabel, metav1.LabelSelectorOpDoesNotExist), true, true},
		"any hash":                    {in(HashLabel, metav1.LabelSelectorOpExists), true, false},
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

// What a budget was charged for may have been an earlier pod of the same name.
func TestGranted(t *testing.T) {
	db := pod("db-0", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} })
	db.CreationTimestamp = metav1.NewTime(now)
	for charged, want := range map[time.Duration]bool{-time.Minute: false, time.Second: true, 9 * time.Second: false} {
		b := budget("db", 1)
		b.Spec.Selector.MatchLabels["app"] = "db"
		b.Status.DisruptedPods = map[string]metav1.Time{"db-0": metav1.NewTime(now.Add(charged))}
		if got := granted(db, []*policyv1.PodDisruptionBudget{b}, now.Add(10*time.Second)); got != want {
			t.Errorf("charged %s after the pod was made, 10 s ago: granted %v, want %v", charged, got, want)
		}
	}
}
