package drain

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// slowWebhook is an admission webhook that takes so long to answer for each eviction.
func slowWebhook(takes time.Duration) func(*http.Request) error {
	return func(r *http.Request) error {
		if !strings.HasSuffix(r.URL.Path, "/eviction") {
			return nil
		}
		select {
		case <-time.After(takes):
			return nil
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

// failedWebhook is what the API server says when its own timeout for a webhook has passed.
func failedWebhook(_, path string, _ map[string]any) (int, any) {
	if !strings.HasSuffix(path, "/eviction") {
		return 0, nil
	}
	return http.StatusInternalServerError, &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError,
		Message: `Internal error occurred: failed calling webhook "x": context deadline exceeded`,
	}
}

// A webhook with the default timeoutSeconds of 10 hangs. The API server begins to wait after us, so it
// is we who give up first: the pod is blocked all the same.
func TestEvictionWithoutAnAnswerIsBlocked(t *testing.T) {
	const want = "not answered within 10s; an admission webhook might hang"
	hangs := func(f *fakeAPI) {
		pods("a")(f)
		f.hold, f.answer = slowWebhook(10*time.Second+5*time.Millisecond), failedWebhook
	}
	stage(t, deleting, 120*time.Second, plan.ReadyCapacity, hangs, func(s *scene) {
		s.until(11 * time.Second)
		if got := s.now().Refusal; got != want {
			s.Errorf("refusal %q after the first attempt, want %q", got, want)
		}
		if len(s.events.all()) != 1 || s.events.all()[0] != "blocked a: "+want {
			s.Errorf("Events %q after the first attempt, want that it is blocked", s.events.all())
		}
		s.until(79 * time.Second)
		if n := s.api.count("DELETE", "/pods/a"); n != 0 {
			s.Error("deleted before its eviction deadline")
		}
		s.until(90 * time.Second) // the deadline is at 80 s; a request that was made before it has its 10 s
		if n := s.api.count("DELETE", "/pods/a"); n != 1 {
			s.Errorf("deleted %d times after its eviction deadline, want once", n)
		}
		s.pass(time.Minute)
	})
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, hangs, func(s *scene) {
		s.until(115 * time.Second)
		if n := s.api.count("DELETE", "/pods/a"); n != 0 {
			s.Error("deleted, which nobody has asked for")
		}
		s.finish("node-a")
		if last := s.events.all()[len(s.events.all())-1]; !strings.HasPrefix(last, "left a: ") || !strings.Contains(last, "webhook") {
			s.Errorf("last Event %q, want that it was left because of the webhook", last)
		}
		s.pass(time.Minute)
	})
}

// A webhook that needs 12 s and then allows the eviction is waited for, if there is time.
func TestEvictionThatIsAnsweredLate(t *testing.T) {
	for name, policy := range map[string]plan.Policy{"left": holding, "deleted": deleting} {
		t.Run(name, func(t *testing.T) {
			stage(t, policy, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
				pods("a")(f)
				f.hold = slowWebhook(12 * time.Second)
			}, func(s *scene) {
				s.until(30 * time.Second)
				if got := s.finish("node-a"); got.Left != 0 || got.Total != 1 {
					s.Errorf("result %+v, want the pod on its way after the second attempt", got)
				}
				s.pass(time.Minute)
			})
		})
	}
}

// A drain that is cancelled waits for a request for 10 s at most, however much time that has.
func TestCancelWaitsForNoLongRequest(t *testing.T) {
	var asked atomic.Int32
	stage(t, holding, 10*time.Minute, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		hang := slowWebhook(time.Hour)
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/eviction") {
				asked.Add(1)
			}
			return hang(r)
		}
	}, func(s *scene) {
		s.until(25 * time.Second) // the second attempt is under way
		if n := asked.Load(); n != 2 {
			s.Fatalf("%d requests, want the second to be under way", n)
		}
		if left := s.cancel("node-a", time.Second); left == nil {
			s.Error("not over, though the request has had its 10 s")
		}
	})
}

// A surge that is not answered twice is given up, as one that is denied.
func TestSurgeWithoutAnAnswer(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.hold = func(r *http.Request) error {
			if r.Method == http.MethodPatch {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		}
	}, func(s *scene) {
		s.until(30 * time.Second)
		if d := s.now().Plan[0]; d.Action != plan.Hold || !strings.Contains(d.NoSurge, "not answered") {
			s.Errorf("%s, not surged because %q; want it held", d.Action, d.NoSurge)
		}
	})
}

// Why a pod's eviction was only ever put off is said when the pod is left.
func TestLeftAfterFailures(t *testing.T) {
	stage(t, holding, 60*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		f.answer = func(_, path string, _ map[string]any) (int, any) {
			if !strings.HasSuffix(path, "/eviction") {
				return 0, nil
			}
			return http.StatusServiceUnavailable, &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable, Message: "etcd is unreachable",
			}
		}
	}, func(s *scene) {
		s.until(55 * time.Second)
		s.finish("node-a")
		if want := "left a: etcd is unreachable"; len(s.events.all()) != 1 || s.events.all()[0] != want {
			s.Errorf("Events %q, want %q", s.events.all(), want)
		}
	})
}
