package drain

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
)

// A pod is not surged before it is known whether its budget would lose it.
func TestNoSurgeBeforeTheBudgetsAreKnown(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		b := budget("web", 1)
		b.Spec.Selector.MatchLabels[plan.HashLabel] = "abc12"
		f.budget(b)
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/poddisruptionbudgets") {
				time.Sleep(5 * time.Second)
			}
			return nil
		}
	}, func(s *scene) {
		s.until(20 * time.Second)
		if n := s.api.count("PATCH", "/pods/a"); n != 0 {
			s.Error("surged, and its budget does not count it any more")
		}
		if d := s.now().Plan[0]; !strings.Contains(d.NoSurge, "disruption budget web") {
			s.Errorf("not surged because %q", d.NoSurge)
		}
	})
}

// A visit of a node that looks before it drains plans once, unless the interruption has changed.
func TestOnePlanForLookAndDrain(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.PendingCapacity, pods("a"), func(s *scene) {
		in := s.in
		pods := func() **corev1.Pod { return &s.d.sessions["node-a"].gathered.Pods[0] }
		view, _ := s.d.Look(s.Context(), "node-a", in)
		planned := pods()
		status, ok := s.d.Drain(s.Context(), "node-a", in, view)
		if !ok || len(status.Moving) != 1 || pods() != planned {
			s.Errorf("planned again, or %+v", status)
		}
		in.Capacity = plan.ReadyCapacity
		if status, _ = s.d.Drain(s.Context(), "node-a", in, view); pods() == planned || status.Plan[0].Action != plan.Evict {
			s.Errorf("%s with a replacement that is ready", status.Plan[0].Action)
		}
	})
}
