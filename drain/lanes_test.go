package drain

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// drainFrom drains the node from then on, with so much time left.
func (s *scene) drainFrom(after time.Duration, node string, left time.Duration, capacity plan.Capacity) {
	in := plan.NodeState{Taint: taint, Deadline: time.Now().Add(left), Capacity: capacity}
	go func() {
		for wait := after; ; wait = 50 * time.Millisecond {
			select {
			case <-s.Context().Done():
				return
			case <-time.After(wait):
				if _, ok := s.look(node, in); ok {
					s.drain(node, in)
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
// eviction: that costs at most half as much again as without a budget, or they leave at 45 a second.
func TestSlowWebhookUnderABudget(t *testing.T) {
	for _, takes := range []time.Duration{60 * time.Millisecond, 400 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			without := lastEviction(t, takes, 0)
			if with := lastEviction(t, takes, 500); with > max(9*time.Second, without+without/2) {
				t.Errorf("the last of 400 was evicted after %s, and after %s without a budget", with, without)
			}
		})
	}
}

// Never are there more evictions under way than the budget allows, but for one that takes long.
func TestSlowWebhookUnderATightBudget(t *testing.T) {
	if last := lastEviction(t, 400*time.Millisecond, 4); last < 32*time.Second || last > 45*time.Second {
		t.Errorf("the last of 400 was evicted after %s, want 4 or 5 at a time with 400 ms for each", last)
	}
}

// lastEviction is when the last of 400 pods was evicted, if each eviction takes so long, under a budget that
// lets so many go at a time; zero is no budget.
func lastEviction(t *testing.T, takes time.Duration, allowed int32) (last time.Duration) {
	var mu sync.Mutex
	stageAtOnce(t, RequestsAtOnce, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
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
		s.until(110 * time.Second)
		if n := s.api.count("POST", "/eviction"); n != 400 {
			s.Errorf("%d evictions in 110 s, want 400", n)
		}
	})
	return last
}
