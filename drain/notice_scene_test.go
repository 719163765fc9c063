package drain

import (
	"testing"
	"time"

	"spot-handler/drain/plan"
)

// A pod's answer overrides its annotation, and moves it and no other. A drain that is cancelled
// says which pods stay.
func TestAnswer(t *testing.T) {
	stage(t, holding, 2*time.Minute, plan.PendingCapacity, func(f *fakeAPI) {
		for _, name := range []string{"a", "b"} {
			f.pod(pod(name, withGrace(30), annotated(plan.WhenAnnotation, "last")))
		}
	}, func(s *scene) {
		s.d.Answer("node-b", "uid-a", plan.WhenNow) // a node that is not being drained
		s.pass(time.Second)
		if n := s.api.count("POST", "/eviction"); n != 0 {
			t.Fatalf("%d evicted, want none yet", n)
		}
		s.d.Answer("node-a", "uid-a", plan.WhenNow)
		s.pass(time.Second)
		if n, ofA := s.api.count("POST", "/eviction"), s.api.count("POST", "/a/eviction"); n != 1 || ofA != 1 {
			t.Errorf("%d evicted, want the one that has answered", n)
		}
		s.api.gone("a")
		s.pass(time.Second)
		left := s.cancel("node-a", 0)
		if left == nil || len(left.Staying) != 1 || left.Staying[0].Name != "b" {
			t.Errorf("%+v: want the other to stay", left)
		}
	})
}
