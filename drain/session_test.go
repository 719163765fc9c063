package drain

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"spot-handler/drain/plan"
	"spot-handler/drain/rewatch"
)

// The API server is unreachable when the drain begins: its pods are known soon after it answers.
func TestOutage(t *testing.T) {
	const outage = 40 * time.Second
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		start := time.Now()
		f.hold = func(*http.Request) error {
			if time.Since(start) < outage {
				return errors.New("connection refused")
			}
			return nil
		}
	}, func(s *scene) {
		s.until(outage + 2*rewatch.Longest)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions %s after the API server is back, want 1", n, 2*rewatch.Longest)
		}
	})
}

// Nodes whose pods take long to list, as a tenant's are so large, hold up the drains of other nodes for
// seconds at most.
func TestSlowNodes(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		f.hold = func(r *http.Request) error {
			if !strings.Contains(r.URL.RawQuery, "slow") {
				return nil
			}
			<-r.Context().Done()
			return r.Context().Err()
		}
	}, func(s *scene) {
		for i := range 2 * startsAtOnce {
			s.d.session(s.Context(), fmt.Sprint("slow-", i))
		}
		other := s.d.session(s.Context(), "other")
		s.pass(2*patience + time.Second)
		if !other.watch.HasSynced() {
			s.Error("it still waits for those that are slow")
		}
	})
}

// A drain ends while a request is under way: its pod's task is forgotten.
func TestNothingIsKeptOfADrainThatHasEnded(t *testing.T) {
	stage(t, surgePolicy, 0, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.hold = func(r *http.Request) error {
			if r.Method == http.MethodPatch {
				time.Sleep(time.Second)
			}
			return nil
		}
	}, func(s *scene) {
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		s.pass(100 * time.Millisecond)
		s.d.Forget("node-a")
		s.pass(5 * time.Second)
		if s.labels("a")[plan.SurgedLabel] == nil {
			s.Fatal("not surged: nothing was under way")
		}
		if n := waiting(s.d.queue); n != 0 {
			s.Errorf("%d tasks wait of no drain", n)
		}
	})
}

// The drain has begun when replacement pods have a node to go to, and not when they are only made:
// one write of the record says both.
func TestBegun(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, surgeScene(1), func(s *scene) {
		if s.labels("a")[plan.SurgedLabel] == nil || s.now().Begun {
			s.Errorf("surged %v, begun %v; want the one alone", s.labels("a")[plan.SurgedLabel], s.now().Begun)
		}
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		if !s.now().Begun || s.api.count("POST", "/eviction") != 0 {
			s.Error("not begun when the replacement is ready")
		}
	})
}
