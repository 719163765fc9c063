package drain

import (
	"testing"
	"time"

	"spot-handler/drain/plan"
)

// A pod that tolerates every taint is put back on its node within the second in which that was marked, by a
// clock of whole seconds, which is three seconds behind. It is not evicted again.
func TestPodThatReturnsAtOnce(t *testing.T) {
	for _, behind := range []time.Duration{0, 3 * time.Second} {
		t.Run(behind.String(), func(t *testing.T) {
			stage(t, holding, 0, plan.PendingCapacity, func(f *fakeAPI) {
				f.pod(pod("a", tolerating(""), createdAt(time.Now().Add(-time.Hour))))
			}, func(s *scene) {
				marked := time.Now()
				s.change(func(in *plan.NodeState) { in.Since, in.Capacity = marked, plan.ReadyCapacity })
				if n := s.api.count("POST", "/eviction"); n != 1 {
					t.Fatalf("%d evictions, want 1", n)
				}
				s.pass(300 * time.Millisecond)
				s.api.gone("a")
				s.api.pod(pod("b", tolerating(""), createdAt(time.Now().Add(-behind).Truncate(time.Second))))
				s.pass(time.Minute)
				if n := s.api.count("POST", "/eviction"); n != 1 {
					t.Errorf("%d evictions, want none of the pod that has come back", n)
				}
				s.api.gone("b")
				s.api.pod(pod("c", createdAt(time.Now())))
				s.pass(time.Minute)
				if n := s.api.count("POST", "/c/eviction"); n != 1 {
					t.Errorf("%d evictions of a pod that came later and tolerates nothing, want 1", n)
				}
			})
		})
	}
}

// One that came while the node was watched, before it was marked, has to leave.
func TestPodThatCameBeforeTheMark(t *testing.T) {
	stage(t, holding, 0, plan.PendingCapacity, pods(), func(s *scene) {
		s.api.pod(pod("a", tolerating(""), createdAt(time.Now())))
		s.pass(5 * time.Second)
		marked := time.Now()
		s.change(func(in *plan.NodeState) { in.Since, in.Capacity = marked, plan.ReadyCapacity })
		if n := s.api.count("POST", "/eviction"); n != 1 {
			s.Errorf("%d evictions, want 1", n)
		}
	})
}
