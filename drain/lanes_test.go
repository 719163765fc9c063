package drain

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
)

func noneToCome() time.Duration { return 0 }

// One eviction under a budget at a time, the most urgent next, and those of other budgets
// beside it.
func TestLanes(t *testing.T) {
	var pushed []*task
	l := newLanes(func(t *task) { pushed = append(pushed, t) }, func(*corev1.Pod) int { return 1 })
	late, soon := &task{latest: now.Add(time.Hour)}, &task{latest: now}

	enter := func(budget types.UID, t *task) *turn {
		turn, _ := l.enter(lane{budget: budget}, t, noneToCome)
		return turn
	}
	first := enter("a", &task{})
	if first == nil || enter("b", &task{}) == nil {
		t.Fatal("a lane that nobody has is not given")
	}
	if enter("a", late) != nil || enter("a", soon) != nil {
		t.Fatal("a lane is given twice")
	}
	first.end()
	first.end() // a second time is nothing
	if !slices.Equal(pushed, []*task{soon}) || soon.turn == nil {
		t.Fatalf("%d tasks go on, want the most urgent, with the lane", len(pushed))
	}
	if enter("a", &task{latest: now.Add(2 * time.Hour)}) != nil {
		t.Fatal("a lane that was handed over is given")
	}
	soon.turn.end()
	if len(pushed) != 2 || pushed[1] != late {
		t.Fatalf("%d tasks have gone on, want the next", len(pushed))
	}
	late.turn.end()
	pushed[2].turn.end()
	if enter("a", &task{}) == nil {
		t.Error("a lane that everybody has left is not given")
	}
}

// A task that takes its time does not hold up the others for all of it: where its budget lets another go,
// that follows as soon as it is clear that it is slow, and the rest a moment apart; where not, after a while.
func TestSlowLane(t *testing.T) {
	for allowed, want := range map[int][]time.Duration{
		1: {250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond, 1000 * time.Millisecond},
		3: {50 * time.Millisecond, 60 * time.Millisecond, 310 * time.Millisecond, 560 * time.Millisecond},
		9: {50 * time.Millisecond, 60 * time.Millisecond, 70 * time.Millisecond, 80 * time.Millisecond},
	} {
		t.Run(fmt.Sprint(allowed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []time.Duration
				var start time.Time
				l := newLanes(func(task *task) {
					got = append(got, time.Since(start))
					go task.turn.begin()
				}, func(*corev1.Pod) int { return allowed })
				enter := func() (*turn, bool) { return l.enter(lane{budget: "a"}, &task{pod: pod("a")}, noneToCome) }
				first, _ := enter()
				for range want {
					enter()
				}
				start = time.Now()
				first.begin()
				time.Sleep(time.Minute)
				if !slices.Equal(got, want) {
					t.Errorf("turns at %s, want %s", got, want)
				}
				first.end()
				if _, ok := enter(); ok {
					t.Error("the late end of the slow one has freed the lane of the others")
				}
			})
		})
	}
}

// A task that has its turn and waits for a seat, or in the queue, does not make its lane slow.
func TestTurnThatHasNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []*task
		l := newLanes(func(task *task) { got = append(got, task) }, func(*corev1.Pod) int { return 9 })
		enter := func() *turn {
			turn, _ := l.enter(lane{budget: "a"}, &task{pod: pod("a")}, noneToCome)
			return turn
		}
		first := enter()
		for range 3 {
			enter()
		}
		time.Sleep(laneTime)
		synctest.Wait()
		if len(got) != 1 {
			t.Errorf("%d turns after %s, want one more", len(got), laneTime)
		}
		first.begin()
		first.end()
		got[0].turn.begin()
		time.Sleep(laneSlow - time.Millisecond)
		synctest.Wait()
		if len(got) != 1 {
			t.Errorf("%d turns within %s of the second, want no more", len(got), laneSlow)
		}
	})
}

// drainFrom drains the node from then on, with so much time left.
func (s *scene) drainFrom(after time.Duration, node string, left time.Duration, capacity plan.Capacity) {
	in := plan.NodeState{Taint: taint, Deadline: time.Now().Add(left), Capacity: capacity}
	go func() {
		for wait := after; ; wait = 50 * time.Millisecond {
			select {
			case <-s.Context().Done():
				return
			case <-time.After(wait):
				if _, ok := s.d.Look(s.Context(), node, in); ok {
					s.d.Drain(s.Context(), node, in, plan.View{})
				}
			}
		}
	}()
}

// Nodes that are lost together are planned one after the other, and yet the pod that is due first has
// the one slot of maxSurge, and goes first under a budget that lets only one go.
func TestMostUrgentFirstOverNodes(t *testing.T) {
	for name, capacity := range map[string]plan.Capacity{"surge": plan.PendingCapacity, "budget": plan.ReadyCapacity} {
		t.Run(name, func(t *testing.T) {
			policy := surgePolicy
			if capacity == plan.ReadyCapacity {
				policy = holding
			}
			stage(t, policy, 2*time.Minute, plan.PendingCapacity, func(f *fakeAPI) {
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

// 400 pods under a budget that lets all of them go, and an admission webhook that takes a while for each
// eviction: they leave as fast as without a budget, or 100 a second.
func TestSlowWebhookUnderABudget(t *testing.T) {
	for _, takes := range []time.Duration{60 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			without := lastEviction(t, takes, 0)
			if with := lastEviction(t, takes, 500); with > max(6*time.Second, without+without/10) {
				t.Errorf("the last of 400 was evicted after %s, and after %s without a budget", with, without)
			}
		})
	}
}

// Never are there more evictions under way than the budget allows, but for one that takes long.
func TestSlowWebhookUnderATightBudget(t *testing.T) {
	if last := lastEviction(t, 400*time.Millisecond, 4); last < 39*time.Second || last > 45*time.Second {
		t.Errorf("the last of 400 was evicted after %s, want 4 at a time with 400 ms for each", last)
	}
}

// lastEviction is when the last of 400 pods was evicted, if each eviction takes so long, under a budget that
// lets so many go at a time; zero is no budget.
func lastEviction(t *testing.T, takes time.Duration, allowed int32) (last time.Duration) {
	var mu sync.Mutex
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		start := time.Now()
		for i := range 400 {
			f.pod(pod(fmt.Sprintf("p%03d", i), withGrace(30), of("web")))
		}
		if allowed > 0 {
			f.budget(&policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "b"},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
				Status:     policyv1.PodDisruptionBudgetStatus{ExpectedPods: 1000, DesiredHealthy: 1000 - allowed, CurrentHealthy: 1000, DisruptionsAllowed: allowed},
			})
		}
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/eviction") {
				time.Sleep(takes)
				mu.Lock()
				defer mu.Unlock()
				last = time.Since(start)
			}
			return nil
		}
	}, func(s *scene) {
		s.d.pace.mu.Lock()
		s.d.pace.most, s.d.pace.limit = requestsAtOnce, requestsAtOnce
		s.d.pace.mu.Unlock()
		s.until(110 * time.Second)
		if n := s.api.count("POST", "/eviction"); n != 400 {
			s.Errorf("%d evictions in 110 s, want 400", n)
		}
	})
	return last
}
