package drain

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// A held pod is evicted at its eviction deadline to the moment, with all its grace.
func TestHeldUntilTheLatestStart(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.PendingCapacity, pods("a"), func(s *scene) {
		s.until(80*time.Second - time.Millisecond)
		if n := s.api.count("POST", "/eviction"); n != 0 {
			s.Fatalf("%d evictions before the latest start", n)
		}
		s.until(80 * time.Second)
		if n := s.api.count("POST", "/eviction"); n != 1 {
			s.Fatalf("%d evictions at the latest start, want 1", n)
		}
		s.api.gone("a")
		s.pass(0)
		if !s.now().Done {
			s.Error("not done when the last pod has gone")
		}
		if r := s.finish("node-a"); r.Total != 1 || r.Graceful != 1 {
			s.Errorf("result %+v", r)
		}
	})
}

// The drain ends after the eviction deadline of a pod without a grace period, not at it, or the pod
// would be left on its node.
func TestHeldWithoutAGracePeriod(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) { f.pod(pod("a", withGrace(0))) }, func(s *scene) {
		s.until(115*time.Second - time.Second)
		if n := s.api.count("POST", "/eviction"); n != 1 {
			s.Errorf("%d evictions a second before the end, want 1", n)
		}
	})
}

// A terminating pod is only waited for, and evicted once.
func TestEvictedOnce(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, pods("a"), func(s *scene) {
		for range 5 {
			s.change(func(in *plan.NodeState) { in.Deadline = in.Deadline.Add(-time.Second) })
			s.pass(time.Second)
		}
		if n := s.api.count("POST", "/eviction"); n != 1 {
			s.Errorf("%d evictions, want 1", n)
		}
	})
}

// Whoever takes over a drain counts the pods as they were evicted by another.
func TestTruncatedByAnother(t *testing.T) {
	stage(t, holding, 20*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		for name, left := range map[string]int64{"whole": 30, "less": 6} {
			f.pod(pod(name, withGrace(30), func(p *corev1.Pod) {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, &left
			}))
		}
	}, func(s *scene) {
		s.pass(time.Second)
		s.api.gone("whole")
		s.api.gone("less")
		s.pass(time.Second)
		if r := s.finish("node-a"); r.Graceful != 1 || r.Truncated != 1 {
			s.Errorf("result %+v, want one that had its whole grace period, and one that had less", r)
		}
	})
}

// Whoever takes over when the deadline has passed plans no more. It counts the pods that are still
// there all the same.
func TestFinishedByAnother(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		f.pod(pod("stays", withGrace(30), func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Key: taint.Key}}
		}))
		f.pod(pod("waits", withGrace(30)))
		f.pod(pod("ends", withGrace(30), func(p *corev1.Pod) {
			own := int64(30)
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, &own
		}))
	}, func(s *scene) {
		next := s.drainer(holding, func(string) {})
		go func() { _ = next.Run(s.Context()) }()
		next.Set("node-a", plan.Wanted{NodeState: s.in, Goal: plan.Look})
		s.pass(time.Second)
		want := interruption.Pods{Total: 2, Truncated: 1, Left: 1}
		status, ok := next.Status(s.Context(), "node-a")
		if !ok || status.Pods != want {
			s.Errorf("result %+v, want %+v", status.Pods, want)
		}
		if len(status.Left) != 1 || status.Left[0].Pod.Name != "waits" || status.Left[0].Reason != "" {
			s.Errorf("%+v, want only the pod that waits to be left", status.Left)
		}
	})
}

func TestSurgeFromLabelToEviction(t *testing.T) {
	policy := plan.Policy{Strategy: plan.StrategySurge, Margin: 10 * time.Second}
	stage(t, policy, 120*time.Second, plan.PendingCapacity, surgeScene(1), func(s *scene) {
		if got := s.labels("a"); got[plan.SurgedLabel] != "abc12" || got[plan.HashLabel] != "surged-abc12" {
			s.Fatalf("labels %v, want the pod surged", got)
		}
		s.until(50 * time.Second)
		if n := s.api.count("POST", "/eviction"); n != 0 {
			s.Fatal("evicted without a replacement pod")
		}
		replacement := webPod("b", readyNow, createdAt(time.Now()))
		replacement.APIVersion, replacement.Kind, replacement.Spec.NodeName = "v1", "Pod", "node-b"
		s.api.put("/api/v1/namespaces/shop/pods/b", replacement)
		s.pass(20 * time.Millisecond)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Fatalf("%d evictions when the replacement pod is Ready, want 1", n)
		}
	})
	stage(t, policy, 120*time.Second, plan.PendingCapacity, surgeScene(1), func(s *scene) {
		s.until(80 * time.Second)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions at the latest start, want 1: no replacement pod came", n)
		}
	})
	stage(t, policy, 120*time.Second, plan.PendingCapacity, surgeScene(0), func(s *scene) {
		if n := s.api.count("PATCH", "/pods/a"); n != 0 {
			s.Error("surged, against maxSurge 0")
		}
	})
}

// Cancelled: surged pods go back, and nothing is evicted any more.
func TestCancel(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, surgeScene(1), func(s *scene) {
		if left := s.cancel("node-a", 0); left == nil || left.Total != 0 {
			s.Fatalf("left %+v", left)
		}
		if got := s.labels("a"); got[plan.SurgedLabel] != nil || got[plan.HashLabel] != "abc12" {
			s.Errorf("labels %v, want the pod as it was", got)
		}
	})
}

func TestSweep(t *testing.T) {
	stage(t, holding, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.pod(webPod("a", readyNow, isSurgedPod))
	}, func(s *scene) {
		drained := true
		sweep := func() {
			s.Helper()
			s.d.opts.Drained = func(string) bool { return drained }
			if err := s.d.sweepOnce(s.Context()); err != nil {
				s.Fatal(err)
			}
		}
		if sweep(); s.labels("a")[plan.SurgedLabel] == nil {
			s.Fatal("put back while its node is drained")
		}
		drained = false
		if sweep(); s.labels("a")[plan.SurgedLabel] != nil || s.labels("a")[plan.HashLabel] != "abc12" {
			s.Errorf("labels %v, want the pod put back", s.labels("a"))
		}
	})
}

// A drain is cancelled in the moment in which a pod has been surged, and the watch has
// not shown it.
func TestCancelOfWhatTheWatchHasNotShown(t *testing.T) {
	stage(t, surgePolicy, 0, plan.PendingCapacity, surgeScene(1), func(s *scene) {
		s.api.mu.Lock()
		s.api.silent = true
		s.api.mu.Unlock()
		s.change(func(in *plan.NodeState) { in.Capacity = plan.ReadyCapacity })
		s.pass(time.Second)
		if s.labels("a")[plan.SurgedLabel] == nil {
			s.Fatal("not surged")
		}
		if left := s.cancel("node-a", 0); left == nil {
			s.Fatal("it is not cancelled")
		}
		if got := s.labels("a"); got[plan.SurgedLabel] != nil || got[plan.HashLabel] != "abc12" {
			s.Errorf("labels %v, want the pod as it was", got)
		}
	})
}

// A cancellation that the API server does not answer is made again.
func TestCancelIsMadeAgain(t *testing.T) {
	stage(t, surgePolicy, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		began := time.Now()
		f.hold = func(r *http.Request) error {
			if strings.HasSuffix(r.URL.Path, "/replicasets/web-abc12") && time.Since(began) < 10*time.Second {
				<-r.Context().Done()
				return r.Context().Err()
			}
			return nil
		}
	}, func(s *scene) {
		if left := s.cancel("node-a", plan.EvictTimeout); left != nil {
			s.Errorf("cancelled while nothing is answered: %+v", left)
		}
		if left := s.cancel("node-a", 2*time.Second); left == nil || s.labels("a")[plan.SurgedLabel] != nil {
			s.Errorf("labels %v, %+v: want the pod back once there are answers", s.labels("a"), left)
		}
	})
}
