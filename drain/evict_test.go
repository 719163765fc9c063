package drain

import (
	"cmp"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"spot-handler/drain/plan"
)

// denied is what the API server makes of an admission webhook's denial; 400 stands for none.
// https://github.com/kubernetes/apiserver/blob/v0.36.3/pkg/admission/plugin/webhook/errors/statuserror.go
func denied(code int32) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: cmp.Or(code, http.StatusBadRequest), Message: `admission webhook "vm" denied the request: moved first`,
	}}
}

// The replies as the API server forms them; e2e has the server itself say them.
func TestClassify(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	budget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	budget.ErrStatus.Details.Causes = []metav1.StatusCause{{
		Type: policyv1.DisruptionBudgetCause, Message: "The disruption budget web needs 10 healthy pods and has 10 currently",
	}}
	terminating := apierrors.NewForbidden(pods, "a", errors.New("namespace is going"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}

	for name, tt := range map[string]struct {
		err     error
		outcome plan.Outcome
		code    string
		after   time.Duration
	}{
		"taken":       {nil, plan.Accepted, "201", 0},
		"gone":        {apierrors.NewNotFound(pods, "a"), plan.PodGone, "404", 0},
		"another UID": {apierrors.NewConflict(pods, "a", errors.New("uid")), plan.Transient, "409", 0},
		"budget":      {budget, plan.Refused, "429", 0},
		"fairness":    {apierrors.NewTooManyRequests("too many requests", 3), plan.Transient, "429", 3 * time.Second},
		"two budgets": {&apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: 500, Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
		}}, plan.Refused, "500", 0},
		"timed out":      {apierrors.NewTimeoutError("conflicts", 10), plan.Transient, "other", 0},
		"terminating":    {terminating, plan.Refused, "403", 0},
		"not allowed":    {apierrors.NewForbidden(pods, "a", errors.New("rbac")), plan.Refused, "403", 0},
		"no credentials": {apierrors.NewUnauthorized("token"), plan.Transient, "other", 0},
		"webhook":        {denied(0), plan.Refused, "other", 0},
		"KubeVirt":       {denied(http.StatusTooManyRequests), plan.Refused, "429", 0},
		"policy":         {denied(http.StatusUnprocessableEntity), plan.Refused, "other", 0},
		"busy":           {apierrors.NewGenericServerResponse(http.StatusTooManyRequests, "POST", pods, "a", "", 1, true), plan.Transient, "429", time.Second},
		"proxy's 404":    {apierrors.NewGenericServerResponse(http.StatusNotFound, "POST", pods, "a", "404 page not found", 0, true), plan.Transient, "404", 0},
		"no reply":       {errors.New("connection refused"), plan.Transient, "error", 0},
		"teapot":         {apierrors.NewGenericServerResponse(http.StatusTeapot, "POST", pods, "a", "", 0, true), plan.Transient, "other", 0},
		"wrapped reply":  {errors.Join(errors.New("evict"), apierrors.NewNotFound(pods, "a")), plan.PodGone, "404", 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := classify(tt.err)
			if a.Outcome != tt.outcome || codeOf(a) != tt.code || a.RetryAfter != tt.after || a.Internal != (tt.code == "500") {
				t.Errorf("got %+v, code %s; want outcome %v, code %s, after %s", a, codeOf(a), tt.outcome, tt.code, tt.after)
			}
		})
	}
	if got, want := classify(budget).Reason, "Cannot evict pod as it would violate the pod's disruption budget. The disruption budget web needs 10 healthy pods and has 10 currently"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
}

// Retry-After is honoured, unless the budget's status says more.
func TestRetryAfter(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		f.answer = func(string, string, map[string]any) (int, any) { return http.StatusTooManyRequests, refusal(10) }
	}, func(s *scene) {
		s.until(9900 * time.Millisecond)
		if n := s.api.count("POST", "/eviction"); n != 1 {
			s.Fatalf("%d tries in 10 s, want 1", n)
		}
		s.until(12 * time.Second)
		if n := s.api.count("POST", "/eviction"); n != 2 {
			s.Fatalf("%d tries in 12 s, want 2", n)
		}
	})
}

// Each answer to an eviction is counted, by its code.
func TestEvictionsAreCounted(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		refusals := 2
		f.answer = func(string, string, map[string]any) (int, any) {
			if refusals--; refusals >= 0 {
				return http.StatusTooManyRequests, refusal(1)
			}
			return http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess}
		}
	}, func(s *scene) {
		s.until(15 * time.Second)
		for code, want := range map[string]float64{"429": 2, "201": 1, "404": 0} {
			var got dto.Metric
			if err := s.d.evictions.WithLabelValues(code).Write(&got); err != nil {
				s.Fatal(err)
			}
			if got.GetCounter().GetValue() != want {
				s.Errorf("%v evictions answered with %s, want %v", got.GetCounter().GetValue(), code, want)
			}
		}
	})
}

// A busy API server is asked again when the pod's eviction deadline has come, whatever it
// says.
func TestRetryAfterEndsAtTheLatestStart(t *testing.T) {
	stage(t, holding, 60*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f) // its latest start is at 20 s
		f.answer = func(string, string, map[string]any) (int, any) {
			return http.StatusTooManyRequests, &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
				Details: &metav1.StatusDetails{RetryAfterSeconds: 32},
			}
		}
	}, func(s *scene) {
		s.until(20*time.Second - time.Millisecond)
		if n := s.api.count("POST", "/eviction"); n != 1 {
			s.Fatalf("%d tries before the latest start, want 1", n)
		}
		s.until(20 * time.Second)
		if n := s.api.count("POST", "/eviction"); n != 2 {
			s.Errorf("%d tries at the latest start, want 2", n)
		}
	})
}

// An admission webhook that denies evictions does not slow down all others, and its words
// are reported.
func TestDeniedEviction(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		f.answer = func(_, path string, _ map[string]any) (int, any) {
			var status *metav1.Status
			if e, ok := denied(http.StatusTooManyRequests).(interface{ Status() metav1.Status }); ok {
				status = new(e.Status())
			}
			return http.StatusTooManyRequests, status
		}
	}, func(s *scene) {
		s.pass(20 * time.Second)
		if want := `admission webhook "vm" denied the request: moved first`; s.now().Refusal != want || s.d.blockedPods() != 1 {
			s.Errorf("refusal %q, want %q", s.now().Refusal, want)
		}
	})
}

// A pod is due from when it is to be evicted until it has been.
func TestDue(t *testing.T) {
	for capacity, want := range map[plan.Capacity]bool{plan.PendingCapacity: false, plan.ReadyCapacity: true} {
		stage(t, holding, 120*time.Second, capacity, func(f *fakeAPI) {
			pods("a")(f)
			f.answer = func(string, string, map[string]any) (int, any) { return http.StatusTooManyRequests, refusal(0) }
		}, func(s *scene) {
			s.pass(20 * time.Second)
			if got := s.now(); got.Due != want || (got.Refusal != "") != want {
				s.Errorf("%v: due %t, refusal %q; want %t", capacity, got.Due, got.Refusal, want)
			}
		})
	}
}

// That a pod is held back is reported once, whatever other errors come between.
func TestBlockedIsToldOnce(t *testing.T) {
	var tries atomic.Int64
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		f.answer = func(string, string, map[string]any) (int, any) {
			if tries.Add(1) == 4 {
				return 503, &metav1.Status{Status: metav1.StatusFailure, Code: 503, Reason: metav1.StatusReasonServiceUnavailable}
			}
			return http.StatusTooManyRequests, refusal(0)
		}
	}, func(s *scene) {
		s.pass(30 * time.Second)
		if len(s.events.all()) != 1 {
			s.Errorf("events %q, want one", s.events.all())
		}
	})
}

// The answer to a surge comes after the pod's eviction deadline: the pod does not go on
// waiting for its replacement pod.
func TestSurgedOverTheLatestStart(t *testing.T) {
	const latest, moment = 80 * time.Second, 100 * time.Millisecond
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		start := time.Now()
		f.after = func(r *http.Request) {
			if r.Method == http.MethodPatch {
				time.Sleep(time.Until(start.Add(latest + moment)))
			}
		}
	}, func(s *scene) {
		s.until(latest + moment)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions when the answer has come, want 1", n)
		}
	})
}

// The API server does not let the pod's labels be changed: it is held, as any other.
func TestDeniedSurge(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.answer = func(method, path string, _ map[string]any) (int, any) {
			if method == http.MethodPatch {
				return 422, &metav1.Status{Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid, Message: "labels are fixed"}
			}
			return 0, nil
		}
	}, func(s *scene) {
		s.pass(10 * time.Second)
		if n := s.api.count("PATCH", "/pods/a"); n != 1 {
			s.Errorf("%d tries to surge it, want one", n)
		}
		if d := s.now().Plan[0]; d.Action != plan.Hold || d.NoSurge != "it cannot be surged: labels are fixed" {
			s.Errorf("%s, not surged because %q", d.Action, d.NoSurge)
		}
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions when the replacement is ready, want 1", n)
		}
	})
}

// The node's watch shows a surge later than that of the Deployment, which has room for
// more: the pod is not surged twice.
func TestSurgedOnce(t *testing.T) {
	stage(t, surgePolicy, 0, plan.PendingCapacity, surgeScene(3), func(s *scene) {
		s.api.mu.Lock()
		s.api.silent = true
		s.api.mu.Unlock()
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		s.pass(5 * time.Second)
		s.change(func(*plan.NodeState) {}) // planned again
		s.pass(5 * time.Second)
		if n := s.api.count("PATCH", "/pods/a"); n != 1 {
			s.Errorf("surged %d times, want once", n)
		}
	})
}

// A pod whose eviction deadline has come is being evicted, and the watch does not show it yet. A
// replacement pod that becomes available then takes its place: the other pod goes only when there is
// one for it too, or at its own deadline.
func TestPodThatIsLeavingStandsInForNone(t *testing.T) {
	replacement := func(name string) *corev1.Pod { return webPod(name, readyNow, onNode("node-b")) }
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(2)(f)
		web := f.copyOf("/apis/apps/v1/namespaces/shop/deployments/web")
		web["spec"].(object)["replicas"] = 2
		f.put("/apis/apps/v1/namespaces/shop/deployments/web", web)
		f.pod(webPod("a", withGrace(60), readyNow, isSurgedPod))
		f.pod(webPod("b", withGrace(5), readyNow, isSurgedPod))
		f.answer = func(_, path string, _ map[string]any) (int, any) {
			if strings.HasSuffix(path, "/a/eviction") {
				return http.StatusCreated, &metav1.Status{Status: metav1.StatusSuccess}
			}
			return 0, nil
		}
	}, func(s *scene) {
		wantEvicted := func(when, want string) {
			s.Helper()
			if got := s.evictedPods(); got != want {
				s.Fatalf("%s: evicted %q, want %q", when, got, want)
			}
		}
		s.until(60 * time.Second)
		wantEvicted("after the deadline of a", "a")
		s.api.pod(replacement("r1"))
		s.pass(time.Second)
		wantEvicted("with one replacement pod", "a")
		s.api.pod(replacement("r2"))
		s.pass(time.Second)
		wantEvicted("with two", "a b")
	})
}
