package plan

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"spot-handler/drain/plan"
)

// Evictions are answered as the API server answers them.
func TestEvict(t *testing.T) {
	unready := func(p *corev1.Pod) { p.Status.Conditions = p.Status.Conditions[:1] }
	for name, tt := range map[string]struct {
		pod    func(*corev1.Pod)
		budget func(*policyv1.PodDisruptionBudget)
		pods   int // others that are healthy
		want   string
	}{
		"enough are healthy": {pods: 2},
		"no more than needed": {
			pods: 1,
			want: "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget db needs 2 healthy pods and has 2 currently",
		},
		"pending pods are always let go": {pod: func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, pods: 1},
		"not Ready, and enough others are": {
			pod:  unready,
			pods: 2,
		},
		"not Ready, and not enough others are": {
			pod:  unready,
			pods: 1,
			want: "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget db needs 2 healthy pods and has 1 currently",
		},
		"not Ready, and that is always allowed": {
			pod:    unready,
			budget: func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = new(policyv1.AlwaysAllow) },
			pods:   1,
		},
		"not Ready, and only a healthy budget lets it go": {
			pod: unready,
			budget: func(b *policyv1.PodDisruptionBudget) {
				b.Spec.UnhealthyPodEvictionPolicy = new(policyv1.IfHealthyBudget)
			},
			pods: 1,
			want: "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget db needs 2 healthy pods and has 1 currently",
		},
		"not Ready, and none has to be": {
			pod:    unready,
			budget: func(b *policyv1.PodDisruptionBudget) { b.Status.DesiredHealthy, b.Status.ExpectedPods = 0, 0 },
			want:   "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget db needs 0 healthy pods and has 0 currently",
		},
		"the status is broken": {
			pods: 5,
			budget: func(b *policyv1.PodDisruptionBudget) {
				b.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason, Message: "no scale"}}
			},
			want: "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget db does not allow evicting pods currently because it failed sync: no scale",
		},
		"it is refused for now only": {
			pods: 5,
			budget: func(b *policyv1.PodDisruptionBudget) {
				b.Status.Conditions = []metav1.Condition{{Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.InsufficientPodsReason}}
			},
		},
		"a number that has to be available": {
			pods: 2,
			budget: func(b *policyv1.PodDisruptionBudget) {
				b.Spec.MaxUnavailable, b.Spec.MinAvailable = nil, new(intstr.FromInt32(2))
				b.Status.ExpectedPods = 0 // as many as there are, whatever the status says
			},
		},
		"a share that has to be available": {
			pods: 2,
			budget: func(b *policyv1.PodDisruptionBudget) {
				b.Spec.MaxUnavailable, b.Spec.MinAvailable = nil, new(intstr.FromString("50%"))
				b.Status.ExpectedPods = 0
			},
			want: "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget db does not allow evicting pods currently",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			change := tt.pod
			if change == nil {
				change = func(*corev1.Pod) {}
			}
			s.pods("StatefulSet", "db", "lost", 1, change)
			s.pods("StatefulSet", "db", "other", tt.pods)
			s.budget("db", "db", 1)
			s.Budgets[0].Status.ExpectedPods, s.Budgets[0].Status.DesiredHealthy = 3, 2
			if tt.budget != nil {
				tt.budget(s.Budgets[0])
			}
			w := newWorld(s.Input)
			if got, _ := w.evict(w.pods["db-0"]); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// What the forecast says of a budget: how short of healthy pods it is, when first, for how long, and how
// many evictions it refuses.
func TestBudgetReport(t *testing.T) {
	s := newScene(t)
	s.pods("StatefulSet", "db", "lost", 3)
	s.pods("StatefulSet", "db", "other", 1)
	s.budget("db", "db", 1)
	s.pods("StatefulSet", "free", "lost", 1)
	s.budget("unconcerned", "nobody", 1)
	f := forecastOf(s.Input)
	if len(f.Budgets) != 1 {
		t.Fatalf("%d budgets, want the one that covers pods of the node: %+v", len(f.Budgets), f.Budgets)
	}
	got := f.Budgets[0]
	if got.At < 0.5 || got.At > 1 {
		t.Errorf("fewest at %v, want when the first pod leaves", got.At)
	}
	got.At = 0
	if want := (Budget{Namespace: "shop", Name: "db", Covers: 3, Desired: 3, Healthy: 4, FewestHealthy: 3, Refused: 2}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}

	// Nobody waits for a budget if the pod is deleted past it: then it is short.
	s = newScene(t)
	s.pods("StatefulSet", "db", "lost", 1, annotated(plan.BlockedAnnotation, "delete"))
	s.budget("db", "db", 0)
	f = forecastOf(s.Input)
	if b := f.Budgets[0]; b.FewestHealthy != 0 || b.At < 79 || b.At > 82 || b.UnavailablePodSeconds < 14.9 || b.UnavailablePodSeconds > 16 {
		t.Errorf("%+v, want it short of one pod for 15 s, from the eviction deadline on", b)
	}
}

// Evictions under one budget are requested one after the other, as the drain does it.
func TestEvictionsOfOneBudget(t *testing.T) {
	s := newScene(t)
	s.pods("StatefulSet", "db", "lost", 5)
	s.budget("db", "db", 5)
	last, first := Seconds(0), Seconds(1000)
	for _, p := range forecastOf(s.Input).Pods {
		last, first = max(last, *p.Leaves), min(first, *p.Leaves)
	}
	if got, want := fmt.Sprintf("%.2f", float64(last-first)), fmt.Sprintf("%.2f", 4*answered.Seconds()); got != want {
		t.Errorf("the fifth leaves %s s after the first, want %s", got, want)
	}
}
