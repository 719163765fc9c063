package drain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
)

// The replacement is Ready, and the scheduler finds no place for the replacement pod: the pod goes back,
// and leaves as any other.
func TestSurgedPodThatKeepsItsSuccessorAway(t *testing.T) {
	stage(t, surgePolicy, 0, plan.ReadyCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.pod(webPod("a", withGrace(30), readyNow, apartBy(corev1.LabelTopologyZone, "web")))
	}, func(s *scene) {
		if s.labels("a")[plan.SurgedLabel] == nil {
			s.Fatal("not surged")
		}
		replacement := webPod("b", createdAt(time.Now()), func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		})
		replacement.APIVersion, replacement.Kind = "v1", "Pod"
		s.api.put("/api/v1/namespaces/shop/pods/b", replacement)
		s.pass(15*time.Second - 2*time.Second)
		if n := s.api.count("POST", "/a/eviction"); n != 0 || s.labels("a")[plan.SurgedLabel] == nil {
			s.Errorf("%d evictions, labels %v; want the replacement pod to have its time", n, s.labels("a"))
		}
		s.pass(5 * time.Second)
		if got := s.labels("a"); got[plan.SurgedLabel] != nil || got[plan.HashLabel] != "abc12" {
			s.Errorf("labels %v, want the pod as it was", got)
		}
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions, want 1: its replacement pod takes its place", n)
		}
	})
}
