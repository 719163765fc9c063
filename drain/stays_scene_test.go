package drain

import (
	"testing"
	"time"

	"spot-handler/drain/plan"
)

// A pod that stays on a recommendation needs no new home, and its node is not empty.
func TestPodThatStaysNeedsNoNewHome(t *testing.T) {
	stage(t, surgePolicy, 0, plan.PendingCapacity, func(f *fakeAPI) {
		f.pod(pod("goes", withGrace(30)))
		f.pod(pod("stays", withGrace(30), annotated(plan.SafeToEvict, "false")))
	}, func(s *scene) {
		view, ok := s.look("node-a", s.in)
		if !ok || len(view.Moving) != 1 || view.Moving[0].Name != "goes" || len(view.Staying) != 1 || view.Staying[0].Name != "stays" {
			s.Errorf("moving %v, staying %v; want goes, stays", view.Moving, view.Staying)
		}
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		s.pass(time.Second)
		s.api.gone("goes")
		s.pass(5 * time.Minute)
		if now := s.now(); now.Moved || now.Done || now.Total != 1 {
			s.Errorf("moved %t, done %t, %d pods; want neither, 1", now.Moved, now.Done, now.Total)
		}
		s.change(func(in *plan.NodeState) { in.Deadline = time.Now().Add(2 * time.Minute) })
		if now := s.now(); now.Total != 2 {
			s.Errorf("%d pods have to leave when the end is certain, want 2", now.Total)
		}
	})
}
