package drain

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func noneToCome() time.Duration { return 0 }

// One eviction under a budget at a time, the most urgent next, and those of other budgets
// beside it.
func TestLanes(t *testing.T) {
	var pushed []*task
	l := newLanes(func(t *task) { pushed = append(pushed, t) })
	late, soon := &task{latest: now.Add(time.Hour)}, &task{latest: now}

	leave := l.enter(lane{budget: "a"}, &task{}, noneToCome)
	if leave == nil || l.enter(lane{budget: "b"}, &task{}, noneToCome) == nil {
		t.Fatal("a lane that nobody has is not given")
	}
	if l.enter(lane{budget: "a"}, late, noneToCome) != nil || l.enter(lane{budget: "a"}, soon, noneToCome) != nil {
		t.Fatal("a lane is given twice")
	}
	leave()
	leave() // a second time is nothing
	if !slices.Equal(pushed, []*task{soon}) || soon.lane == nil {
		t.Fatalf("%d tasks go on, want the most urgent, with the lane", len(pushed))
	}
	if l.enter(lane{budget: "a"}, &task{latest: now.Add(2 * time.Hour)}, noneToCome) != nil {
		t.Fatal("a lane that was handed over is given")
	}
	soon.lane()
	if len(pushed) != 2 || pushed[1] != late {
		t.Fatalf("%d tasks have gone on, want the next", len(pushed))
	}
	late.lane()
	pushed[2].lane()
	if l.enter(lane{budget: "a"}, &task{}, noneToCome) == nil {
		t.Error("a lane that everybody has left is not given")
	}
}

// A task that takes its time does not hold up the others for all of it.
func TestSlowLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pushed := make(chan *task, 1)
		l := newLanes(func(t *task) { pushed <- t })
		slow := l.enter(lane{budget: "a"}, &task{}, noneToCome)
		l.enter(lane{budget: "a"}, &task{}, noneToCome)
		start := time.Now()
		next := <-pushed
		if took := time.Since(start); took != laneTime {
			t.Errorf("the next goes on after %s, want %s", took, laneTime)
		}
		slow() // it is no longer the lane's
		if l.enter(lane{budget: "a"}, &task{}, noneToCome) != nil {
			t.Error("the late end of the slow one has freed the lane of the next")
		}
		next.lane()
		(<-pushed).lane()
	})
}

// drainFrom drains the node from then on, with so much time left.
func (s *scene) drainFrom(after time.Duration, node string, left time.Duration, capacity Capacity) {
	in := Interruption{Taint: taint, Deadline: time.Now().Add(left), Capacity: capacity}
	go func() {
		for wait := after; ; wait = 50 * time.Millisecond {
			select {
			case <-s.Context().Done():
				return
			case <-time.After(wait):
				if _, ok := s.d.Look(s.Context(), node, in); ok {
					s.d.Drain(s.Context(), node, in, View{})
				}
			}
		}
	}()
}

// Nodes that are lost together are planned one after the other, and yet the pod that is due first has
// the one slot of maxSurge, and goes first under a budget that lets only one go.
func TestMostUrgentFirstOverNodes(t *testing.T) {
	for name, capacity := range map[string]Capacity{"surge": PendingCapacity, "budget": ReadyCapacity} {
		t.Run(name, func(t *testing.T) {
			policy := surgePolicy
			if capacity == ReadyCapacity {
				policy = holding
			}
			stage(t, policy, 2*time.Minute, PendingCapacity, func(f *fakeAPI) {
				surgeScene(1)(f)
				f.gone("a")
				for _, node := range []string{"node-b", "node-c", "node-d"} {
					f.pod(webPod("on-"+node, withGrace(30), readyNow, onNode(node)))
				}
				f.budget(budget("web", 1))
			}, func(s *scene) {
				s.drainFrom(0, "node-b", 2*time.Minute, capacity)
				s.drainFrom(100*time.Millisecond, "node-c", 90*time.Second, capacity)
				s.drainFrom(250*time.Millisecond, "node-d", time.Minute, capacity)
				s.pass(2 * time.Second)
				s.api.mu.Lock()
				defer s.api.mu.Unlock()
				first := slices.IndexFunc(s.api.requests, func(r string) bool { return strings.HasPrefix(r, "P") }) // POST or PATCH
				if first < 0 || !strings.Contains(s.api.requests[first], "/on-node-d") {
					s.Errorf("requests %v, want first what is due first", s.api.requests)
				}
			})
		})
	}
}
