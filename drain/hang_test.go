package drain

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// An admission webhook that hangs for some pods' evictions does not hold up those of others in their
// namespace, which has two of four seats.
func TestEvictionsThatHang(t *testing.T) {
	var answers atomic.Bool
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a", "b", "c", "d", "e")(f) // there are seats for four
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/eviction") && !strings.HasSuffix(r.URL.Path, "/e/eviction") && !answers.Load() {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		}
	}, func(s *scene) {
		s.pass(6 * time.Second)
		if n := s.api.count("POST", "/e/eviction"); n != 1 {
			s.Errorf("%d evictions of the fifth pod after %s, want 1", n, 6*time.Second)
		}
		answers.Store(true)
		s.pass(2 * plan.EvictTimeout)
		if n := s.api.count("POST", "/eviction"); n != 5 {
			s.Errorf("%d evictions, want those of all five when the webhook answers again", n)
		}
	})
}

// One that hangs for all evictions of a namespace, however many, delays no other namespace's.
func TestEvictionsOfOneNamespaceThatHang(t *testing.T) {
	var answers atomic.Bool
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		for i := range 100 {
			p := pod(fmt.Sprint("hangs-", i), inNamespace("hostile"))
			p.APIVersion, p.Kind, p.Spec.NodeName = "v1", "Pod", "node-a"
			f.put("/api/v1/namespaces/hostile/pods/"+p.Name, p)
		}
		f.hold = func(r *http.Request) error {
			if strings.Contains(r.URL.Path, "/hostile/") && strings.HasSuffix(r.URL.Path, "/eviction") && !answers.Load() {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		}
	}, func(s *scene) {
		for range 60 { // all the time there is another that is due
			s.pass(time.Second)
		}
		s.api.pod(pod("a"))
		s.pass(0)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions of the other namespace's pod, want 1 at once", n)
		}
		answers.Store(true)
		s.pass(2 * plan.EvictTimeout)
		if n := s.api.count("POST", "/eviction"); n != 101 {
			s.Errorf("%d evictions, want those of all when the webhook answers again", n)
		}
	})
}

// An API server that has no room is given time, and the pod is not taken for blocked.
func TestBusyServer(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		f.answer = func(string, string, map[string]any) (int, any) {
			return http.StatusTooManyRequests, &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
				Details: &metav1.StatusDetails{RetryAfterSeconds: 5},
			}
		}
	}, func(s *scene) {
		s.until(4 * time.Second)
		if n := s.api.count("POST", "/eviction"); n != 1 {
			s.Errorf("%d tries within Retry-After, want 1", n)
		}
		if s.d.blockedPods() != 0 {
			s.Error("the pod counts as blocked by a budget")
		}
	})
}
