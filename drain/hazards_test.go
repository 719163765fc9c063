package drain

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/rewatch"
)

// What goes wrong around a drain.

var surgePolicy = Policy{Strategy: Surge, Margin: 10 * time.Second}

// Pods that wait for the replacement, and not for their Deployment, are left alone by what
// goes on there.
func TestWaitingForTheReplacementCostsNothing(t *testing.T) {
	var wakes atomic.Int64
	stage(t, surgePolicy, 0, PendingCapacity, surgeScene(1), func(s *scene) {
		wake := s.d.deployments.wake
		s.d.deployments.wake = func(name types.NamespacedName, slots, spare int) {
			wakes.Add(1)
			wake(name, slots, spare)
		}
		s.api.change("a", func(pod object) { pod["metadata"].(object)["annotations"] = object{"other": "news"} })
		s.pass(10 * time.Second)
		if n := wakes.Load(); n > 2 {
			s.Errorf("the Deployment was looked at %d times in 10 s for one change", n)
		}
		s.change(func(in *Interruption) { in.Capacity = ReadyCapacity })
		s.pass(time.Second)
		if s.labels("a")[SurgedLabel] == nil {
			s.Error("not surged when the replacement is ready")
		}
	})
}

// A namespace that asks to leave its pods is asked before one is deleted, however long the
// answer takes.
func TestNoPodIsDeletedBeforeItsNamespaceIsAsked(t *testing.T) {
	stage(t, deleting, 120*time.Second, PendingCapacity, func(f *fakeAPI) {
		pods("a")(f)
		f.put("/api/v1/namespaces/shop", &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{BlockedAnnotation: "leave"}},
		})
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/namespaces/shop") {
				time.Sleep(3 * time.Second)
			}
			return nil
		}
		f.answer = refuseEvictions
	}, func(s *scene) {
		s.until(115 * time.Second)
		if n := s.api.count("DELETE", "/pods/a"); n != 0 {
			s.Error("deleted past its budget, against its namespace's wish")
		}
	})
}

// An admission webhook that denies evictions does not slow down all others, and its words
// are told.
func TestDeniedEviction(t *testing.T) {
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
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
		if s.d.pace.limit != 4 {
			s.Errorf("%d requests at once, want 4: the API server is not busy", s.d.pace.limit)
		}
		if want := `admission webhook "vm" denied the request: moved first`; s.now().Refusal != want || s.d.blockedPods() != 1 {
			s.Errorf("refusal %q, want %q", s.now().Refusal, want)
		}
	})
}

// An admission webhook that hangs for some pods' evictions does not hold up those of others.
func TestEvictionsThatHang(t *testing.T) {
	var answers atomic.Bool
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
		pods("a", "b", "c", "d", "e")(f) // there are seats for four
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/eviction") && !strings.HasSuffix(r.URL.Path, "/e/eviction") && !answers.Load() {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		}
	}, func(s *scene) {
		s.pass(patience)
		if n := s.api.count("POST", "/e/eviction"); n != 1 {
			s.Errorf("%d evictions of the fifth pod after %s, want 1", n, patience)
		}
		answers.Store(true)
		s.pass(2 * evictTimeout)
		if n := s.api.count("POST", "/eviction"); n != 5 {
			s.Errorf("%d evictions, want those of all five when the webhook answers again", n)
		}
	})
}

// An eviction is under way when the pod's latest safe start comes, and is refused a moment
// later: the pod is deleted then, and not when its next attempt would have been.
func TestRefusedOverTheLatestStart(t *testing.T) {
	const latest, moment = 80 * time.Second, 100 * time.Millisecond
	stage(t, deleting, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		start := time.Now()
		f.hold = func(r *http.Request) error {
			over := time.Until(start.Add(latest + moment))
			if strings.HasSuffix(r.URL.Path, "/eviction") && over < evictTimeout && over > 0 {
				time.Sleep(over)
			}
			return nil
		}
		f.answer = refuseEvictions
	}, func(s *scene) {
		s.until(latest + moment - time.Millisecond)
		if n := s.api.count("DELETE", "/pods/a"); n != 0 {
			s.Fatal("deleted while its eviction was under way")
		}
		s.until(latest + moment)
		if n := s.api.count("DELETE", "/pods/a"); n != 1 {
			s.Errorf("deleted %d times when its eviction was refused, want once", n)
		}
	})
}

// The answer to a surge comes after the pod's latest safe start: the pod does not go on
// waiting for its successor.
func TestSurgedOverTheLatestStart(t *testing.T) {
	const latest, moment = 80 * time.Second, 100 * time.Millisecond
	stage(t, surgePolicy, 120*time.Second, PendingCapacity, func(f *fakeAPI) {
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
	stage(t, surgePolicy, 120*time.Second, PendingCapacity, func(f *fakeAPI) {
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
		if d := s.now().Plan[0]; d.Action != Later || d.NoSurge != "it cannot be surged: labels are fixed" {
			s.Errorf("%s, not surged because %q", d.Action, d.NoSurge)
		}
		s.change(func(in *Interruption) { in.Capacity = ReadyCapacity })
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions when the replacement is ready, want 1", n)
		}
	})
}

// The API server is away when the drain begins: its pods are known soon after it is back.
func TestOutage(t *testing.T) {
	const outage = 40 * time.Second
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
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

// A drain is called off in the moment in which a pod has been surged, and the watch has
// not shown it.
func TestCallOffOfWhatTheWatchHasNotShown(t *testing.T) {
	stage(t, surgePolicy, 0, PendingCapacity, surgeScene(1), func(s *scene) {
		s.api.mu.Lock()
		s.api.silent = true
		s.api.mu.Unlock()
		s.change(func(in *Interruption) { in.Capacity = ReadyCapacity })
		s.pass(time.Second)
		if s.labels("a")[SurgedLabel] == nil {
			s.Fatal("not surged")
		}
		if _, done, err := s.d.CallOff(s.Context(), "node-a"); err != nil || !done {
			s.Fatalf("done %v, %v", done, err)
		}
		if got := s.labels("a"); got[SurgedLabel] != nil || got[hashLabel] != "abc12" {
			s.Errorf("labels %v, want the pod as it was", got)
		}
	})
}

// A drain ends while a request is under way: its pod's task is forgotten.
func TestNothingIsKeptOfADrainThatHasEnded(t *testing.T) {
	stage(t, surgePolicy, 0, PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.hold = func(r *http.Request) error {
			if r.Method == http.MethodPatch {
				time.Sleep(time.Second)
			}
			return nil
		}
	}, func(s *scene) {
		s.change(func(in *Interruption) { in.Capacity = ReadyCapacity })
		s.pass(100 * time.Millisecond)
		s.d.Forget("node-a")
		s.pass(5 * time.Second)
		if s.labels("a")[SurgedLabel] == nil {
			s.Fatal("not surged: nothing was under way")
		}
		if n := waiting(s.d.queue); n != 0 {
			s.Errorf("%d tasks wait of no drain", n)
		}
	})
}

// A busy API server is asked again when the pod's latest safe start has come, whatever it
// says.
func TestRetryAfterEndsAtTheLatestStart(t *testing.T) {
	stage(t, holding, 60*time.Second, ReadyCapacity, func(f *fakeAPI) {
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

// That a pod is held back is told once, whatever other errors come between.
func TestBlockedIsToldOnce(t *testing.T) {
	var tries atomic.Int64
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		f.answer = func(string, string, map[string]any) (int, any) {
			if tries.Add(1) == tellAfter {
				return 503, &metav1.Status{Status: metav1.StatusFailure, Code: 503, Reason: metav1.StatusReasonServiceUnavailable}
			}
			return http.StatusTooManyRequests, refusal(0)
		}
	}, func(s *scene) {
		s.pass(30 * time.Second)
		if len(s.events.list) != 1 {
			s.Errorf("events %q, want one", s.events.list)
		}
	})
}

// A pod is not surged before it is known whether its budget would lose it.
func TestNoSurgeBeforeTheBudgetsAreKnown(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		b := budget("web", 1)
		b.Spec.Selector.MatchLabels[hashLabel] = "abc12"
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
		if d := s.now().Plan[0]; !strings.Contains(d.NoSurge, "disruption budget web") {
			s.Errorf("not surged because %q", d.NoSurge)
		}
	})
}

// What a budget was charged for may have been an earlier pod of the same name.
func TestGranted(t *testing.T) {
	db := pod("db-0", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} })
	db.CreationTimestamp = metav1.NewTime(now)
	for charged, want := range map[time.Duration]bool{-time.Minute: false, time.Second: true, 9 * time.Second: false} {
		b := budget("db", 1)
		b.Spec.Selector.MatchLabels["app"] = "db"
		b.Status.DisruptedPods = map[string]metav1.Time{"db-0": metav1.NewTime(now.Add(charged))}
		if got := granted(db, []*policyv1.PodDisruptionBudget{b}, now.Add(10*time.Second)); got != want {
			t.Errorf("charged %s after the pod was made, 10 s ago: granted %v, want %v", charged, got, want)
		}
	}
}

// The node's watch shows a surge later than that of the Deployment, which has room for
// more: the pod is not surged twice.
func TestSurgedOnce(t *testing.T) {
	stage(t, surgePolicy, 0, PendingCapacity, surgeScene(3), func(s *scene) {
		s.api.mu.Lock()
		s.api.silent = true
		s.api.mu.Unlock()
		s.change(func(in *Interruption) { in.Capacity = ReadyCapacity })
		s.pass(5 * time.Second)
		s.change(func(*Interruption) {}) // planned anew
		s.pass(5 * time.Second)
		if n := s.api.count("PATCH", "/pods/a"); n != 1 {
			s.Errorf("surged %d times, want once", n)
		}
	})
}

// The drain has begun when successors have a node to go to, and not when they are only made:
// one write of the record says both.
func TestBegun(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, PendingCapacity, surgeScene(1), func(s *scene) {
		if s.labels("a")[SurgedLabel] == nil || s.now().Begun {
			s.Errorf("surged %v, begun %v; want the one alone", s.labels("a")[SurgedLabel], s.now().Begun)
		}
		s.change(func(in *Interruption) { in.Capacity = ReadyCapacity })
		if !s.now().Begun || s.api.count("POST", "/eviction") != 0 {
			s.Error("not begun when the replacement is ready")
		}
	})
}

// A call-off that the API server does not answer comes back, to be made again.
func TestCallOffHoldsNobodyUp(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/replicasets/web-abc12") {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		}
	}, func(s *scene) {
		start := time.Now()
		if _, done, err := s.d.CallOff(s.Context(), "node-a"); done || err == nil || time.Since(start) > evictTimeout {
			s.Errorf("done %v, %v after %s, want an error within %s", done, err, time.Since(start), evictTimeout)
		}
	})
}
