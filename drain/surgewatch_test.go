package drain

import (
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
)

// Pods that wait for the replacement, and not for their Deployment, are left alone by what
// goes on there.
func TestWaitingForTheReplacementCostsNothing(t *testing.T) {
	var wakes atomic.Int64
	stage(t, surgePolicy, 0, plan.PendingCapacity, surgeScene(1), func(s *scene) {
		wake := s.d.deployments.wake
		s.d.deployments.wake = func(name types.NamespacedName, w plan.DeploymentState) {
			wakes.Add(1)
			wake(name, w)
		}
		s.api.change("a", func(pod object) { pod["metadata"].(object)["annotations"] = object{"other": "news"} })
		s.pass(10 * time.Second)
		if n := wakes.Load(); n > 2 {
			s.Errorf("the Deployment was looked at %d times in 10 s for one change", n)
		}
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		s.pass(time.Second)
		if s.labels("a")[plan.SurgedLabel] == nil {
			s.Error("not surged when the replacement is ready")
		}
	})
}
