package drain

import (
	"sync/atomic"
	"testing"
	"time"

	"spot-handler/drain/plan"
)

// count counts how often the node is notified of, from now on.
func (s *scene) count() *atomic.Int64 {
	s.pass(0)
	var n atomic.Int64
	notify := s.d.opts.Notify
	s.d.opts.Notify = func(node string) {
		n.Add(1)
		notify(node)
	}
	return &n
}

// A node is planned again once for many pods that go, at once for the last, and not at all
// for what no plan reads.
func TestPlannedAgainWhenItMatters(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, pods("a", "b", "c", "d"), func(s *scene) {
		for _, name := range []string{"a", "b", "c", "d"} { // the watch may have begun after the evictions
			s.api.change(name, func(pod object) { pod["metadata"].(object)["annotations"] = object{"other": "old"} })
		}
		s.pass(time.Second)
		changes := s.count()
		wantTold := func(want int64, after string) {
			s.Helper()
			if n := changes.Swap(0); n != want {
				s.Errorf("notified %d times %s, want %d", n, after, want)
			}
		}
		s.api.change("d", func(pod object) { pod["metadata"].(object)["annotations"] = object{"other": "news"} })
		s.pass(time.Second)
		wantTold(0, "of what no plan reads")
		s.api.gone("a")
		s.api.change("d", func(pod object) { pod["status"] = object{"phase": "Running"} })
		s.api.gone("b")
		s.pass(499 * time.Millisecond)
		wantTold(0, "while others are there")
		s.pass(time.Millisecond)
		wantTold(1, "in a moment")
		s.api.gone("c")
		s.pass(0)
		wantTold(0, "while another is there")
		s.api.change("d", func(pod object) { pod["status"] = object{"phase": "Succeeded"} })
		s.pass(0)
		wantTold(1, "of the last")
		if !s.now().Done {
			s.Error("not done when the last pod has finished")
		}
	})
}

// A pod that comes late is planned for at once.
func TestNewPodIsPlannedForAtOnce(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, pods("a", "b"), func(s *scene) {
		s.pass(500 * time.Millisecond)
		s.api.gone("a")
		s.api.pod(pod("late", withGrace(30)))
		s.pass(0)
		if n := s.api.count("POST", "/late/eviction"); n != 1 {
			s.Errorf("%d evictions of a pod that came late, want 1 at once", n)
		}
	})
}

// What became of the pods is reported as it is, also before the node is planned again.
func TestResultIsOfNow(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.PendingCapacity, pods("a", "b", "c"), func(s *scene) {
		s.api.gone("a")
		s.api.terminate("b")
		s.pass(0)
		if r := s.finish("node-a"); r.Total != 3 || r.Left != 1 || r.Truncated != 1 {
			s.Errorf("result %+v, want one left, one that is still terminating, and one gone", r)
		}
	})
}
