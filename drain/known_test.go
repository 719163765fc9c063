package drain

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// A pod is not surged before it is known whether its budget would lose it.
func TestNoSurgeBeforeTheBudgetsAreKnown(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		b := budget("web", 1)
		b.Spec.Selector.MatchLabels[plan.HashLabel] = "abc12"
		f.budget(b)
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/poddisruptionbudgets") {
				time.Sleep(5 * time.Second)
			}
			return nil
		}
	}, func(s *scene) {
		s.until(20 * time.Second)
		if n := s.api.count("PATCH", "/pods/a"); n != 0 {
			s.Error("surged, and its budget does not count it any more")
		}
		if d := s.now().Plan[0]; !strings.Contains(d.NoSurge, "PDB web") {
			s.Errorf("not surged because %q", d.NoSurge)
		}
	})
}

// However late it is known what a namespace asks for, none of its pods is evicted early before.
func TestNamespaceIsKnownBeforeEviction(t *testing.T) {
	for _, late := range []time.Duration{400 * time.Millisecond, 600 * time.Millisecond, 30 * time.Second} {
		t.Run(late.String(), func(t *testing.T) {
			stage(t, plan.Policy{Strategy: plan.StrategyAtOnce, Margin: 10 * time.Second}, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
				f.put("/api/v1/namespaces/shop", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{plan.WhenAnnotation: "last"}}})
				f.pod(pod("a"))
				from := time.Now()
				f.hold = func(r *http.Request) error {
					if !strings.HasSuffix(r.URL.Path, "/namespaces/shop") || time.Since(from) > late {
						return nil
					}
					select {
					case <-time.After(late - time.Since(from)):
						return nil
					case <-r.Context().Done():
						return r.Context().Err()
					}
				}
			}, func(s *scene) {
				s.until(75 * time.Second)
				if n := s.api.count(http.MethodPost, "/pods/a/eviction"); n != 0 {
					s.Error("evicted early: its namespace asks for the end")
				}
				s.until(85 * time.Second)
				if n := s.api.count(http.MethodPost, "/pods/a/eviction"); n != 1 {
					s.Errorf("%d evictions at its eviction deadline", n)
				}
			})
		})
	}
}

// A refused pod is tried again every few seconds, and as soon as its budget allows it.
func TestRefusedPodWakesWithItsBudget(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		p := pod("a", withGrace(30))
		p.Labels = map[string]string{"app": "web"}
		f.pod(p)
		f.budget(budget("web", 1))
		f.answer = refuseEvictions
	}, func(s *scene) {
		s.pass(20 * time.Second)
		n := s.api.count("POST", "/eviction")
		if n < 5 || n > 15 {
			s.Errorf("%d tries in 20 s, want some, with backoff", n)
		}
		if s.now().Refusal != "no needs 10" || len(s.events.all()) != 1 {
			s.Errorf("refusal %q, events %q; want the API server's words, once", s.now().Refusal, s.events.all())
		}
		s.api.mu.Lock()
		s.api.answer = nil
		s.api.mu.Unlock()
		b := budget("web", 1)
		b.Status.DisruptionsAllowed = 1
		s.api.budget(b)
		s.pass(0)
		if got := s.api.count("POST", "/eviction"); got != n+1 {
			s.Errorf("%d tries when the budget allows it, want one at once", got-n)
		}
	})
}
