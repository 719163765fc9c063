package drain

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	holding  = Policy{Strategy: Hold, Blocked: Leave, Margin: 10 * time.Second}
	deleting = Policy{Strategy: Hold, Blocked: Delete, Margin: 10 * time.Second}
)

func pods(names ...string) func(*fakeAPI) {
	return func(f *fakeAPI) {
		for _, name := range names {
			f.pod(pod(name, withGrace(30)))
		}
	}
}

// A held pod is evicted at its latest safe start to the moment, with all its grace.
func TestHeldUntilTheLatestStart(t *testing.T) {
	stage(t, holding, 120*time.Second, PendingCapacity, pods("a"), func(s *scene) {
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
		if r := s.d.Finish("node-a"); r.Total != 1 || r.Graceful != 1 {
			s.Errorf("result %+v", r)
		}
	})
}

// A terminating pod is only waited for, and evicted once.
func TestEvictedOnce(t *testing.T) {
	stage(t, holding, 120*time.Second, ReadyCapacity, pods("a"), func(s *scene) {
		for range 5 {
			s.change(func(in *Interruption) { in.Deadline = in.Deadline.Add(-time.Second) })
			s.pass(time.Second)
		}
		if n := s.api.count("POST", "/eviction"); n != 1 {
			s.Errorf("%d evictions, want 1", n)
		}
	})
}

// A refused pod is tried again every few seconds, and as soon as its budget allows it.
func TestRefusedPodWakesWithItsBudget(t *testing.T) {
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
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
		if s.now().Refusal != "no needs 10" || len(s.events.list) != 1 {
			s.Errorf("refusal %q, events %q; want the API server's words, once", s.now().Refusal, s.events.list)
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

// Retry-After is honoured, unless the budget's status says more.
func TestRetryAfter(t *testing.T) {
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
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

// At the latest start a pod that is still refused is deleted, where that is asked for,
// marked first; where not, it is tried to the end.
func TestBlockedAtTheLatestStart(t *testing.T) {
	blocked := func(f *fakeAPI) {
		pods("a")(f)
		f.answer = refuseEvictions
	}
	stage(t, deleting, 120*time.Second, ReadyCapacity, blocked, func(s *scene) {
		s.until(80*time.Second - time.Millisecond)
		if n := s.api.count("DELETE", "/pods/a"); n != 0 {
			s.Fatal("deleted before its latest start")
		}
		s.until(80 * time.Second)
		if marked, deleted := s.api.count("PATCH", "/status"), s.api.count("DELETE", "/pods/a"); marked != 1 || deleted != 1 {
			s.Fatalf("marked %d times, deleted %d times at the latest start; want once", marked, deleted)
		}
		s.api.gone("a")
		s.pass(0)
		if r := s.d.Finish("node-a"); r.Forced != 1 || r.Total != 1 {
			s.Errorf("result %+v, want 1 forced", r)
		}
	})
	stage(t, holding, 120*time.Second, ReadyCapacity, blocked, func(s *scene) {
		s.until(119 * time.Second)
		if n := s.api.count("DELETE", "/pods/a"); n != 0 {
			s.Fatal("deleted past its budget, which nobody has asked for")
		}
		if r := s.d.Finish("node-a"); r.Left != 1 || r.Refusal != "no needs 10" {
			s.Errorf("result %+v, want 1 left", r)
		}
		if last := s.events.list[len(s.events.list)-1]; last != "left a: no needs 10" {
			s.Errorf("last event %q", last)
		}
	})
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
		blocked(f)
		f.put("/api/v1/namespaces/shop", &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{BlockedAnnotation: "delete"}},
		})
	}, func(s *scene) {
		s.until(80 * time.Second)
		if n := s.api.count("DELETE", "/pods/a"); n != 1 {
			s.Errorf("deleted %d times, want once: its namespace asks for it", n)
		}
	})
}

// An API server that has no room is given time, and the pod is not taken for blocked.
func TestBusyServer(t *testing.T) {
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
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
		if s.d.pace.limit != 2 {
			s.Errorf("%d requests at once after a refusal, want 2 of 4", s.d.pace.limit)
		}
		if s.d.blockedPods() != 0 {
			s.Error("the pod counts as blocked by a budget")
		}
	})
}

// surgeScene is a Deployment of one pod, which is on node-a.
func surgeScene(maxSurge int) func(*fakeAPI) {
	return func(f *fakeAPI) {
		f.put("/apis/apps/v1/namespaces/shop/deployments/web", object{
			"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": object{"name": "web", "namespace": "shop"},
			"spec": object{
				"replicas": 1, "selector": object{"matchLabels": object{"app": "web"}},
				"strategy": object{"type": "RollingUpdate", "rollingUpdate": object{"maxSurge": maxSurge}},
			},
			"status": object{"replicas": 1, "updatedReplicas": 1},
		})
		f.put("/apis/apps/v1/namespaces/shop/replicasets/web-abc12", object{
			"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": object{"name": "web-abc12", "namespace": "shop", "uid": "set"},
		})
		f.pod(webPod("a", withGrace(30), readyNow))
	}
}

func readyNow(p *corev1.Pod) {
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].LastTransitionTime = metav1.Now()
	}
}

func (s *scene) labels(name string) map[string]any {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	return s.api.objects["/api/v1/namespaces/shop/pods/"+name]["metadata"].(object)["labels"].(object)
}

func TestSurgeFromLabelToEviction(t *testing.T) {
	policy := Policy{Strategy: Surge, Margin: 10 * time.Second}
	stage(t, policy, 120*time.Second, PendingCapacity, surgeScene(1), func(s *scene) {
		if got := s.labels("a"); got[SurgedLabel] != "abc12" || got[hashLabel] != "surged-abc12" {
			s.Fatalf("labels %v, want the pod surged", got)
		}
		s.until(50 * time.Second)
		if n := s.api.count("POST", "/eviction"); n != 0 {
			s.Fatal("evicted without a successor")
		}
		successor := webPod("b", readyNow)
		successor.APIVersion, successor.Kind, successor.Spec.NodeName = "v1", "Pod", "node-b"
		s.api.put("/api/v1/namespaces/shop/pods/b", successor)
		s.pass(settleFor)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Fatalf("%d evictions when the successor is Ready, want 1", n)
		}
	})
	stage(t, policy, 120*time.Second, PendingCapacity, surgeScene(1), func(s *scene) {
		s.until(80 * time.Second)
		if n := s.api.count("POST", "/a/eviction"); n != 1 {
			s.Errorf("%d evictions at the latest start, want 1: no successor came", n)
		}
	})
	stage(t, policy, 120*time.Second, PendingCapacity, surgeScene(0), func(s *scene) {
		if n := s.api.count("PATCH", "/pods/a"); n != 0 {
			s.Error("surged, against maxSurge 0")
		}
	})
}

// Called off: surged pods go back, and nothing is evicted any more.
func TestCallOff(t *testing.T) {
	policy := Policy{Strategy: Surge, Margin: 10 * time.Second}
	stage(t, policy, 120*time.Second, PendingCapacity, surgeScene(1), func(s *scene) {
		r, done, err := s.d.CallOff(s.Context(), "node-a")
		if err != nil || !done || r.Total != 0 {
			s.Fatalf("result %+v, done %v, %v", r, done, err)
		}
		if got := s.labels("a"); got[SurgedLabel] != nil || got[hashLabel] != "abc12" {
			s.Errorf("labels %v, want the pod as it was", got)
		}
	})
	t.Run("its ReplicaSet is gone", func(t *testing.T) {
		stage(t, policy, 120*time.Second, PendingCapacity, surgeScene(1), func(s *scene) {
			s.api.remove("/apis/apps/v1/namespaces/shop/replicasets/web-abc12")
			if _, done, err := s.d.CallOff(s.Context(), "node-a"); err != nil || !done {
				s.Fatalf("done %v, %v", done, err)
			}
			if n := s.api.count("POST", "/a/eviction"); n != 1 {
				s.Errorf("%d evictions of a pod that nobody owns, want 1", n)
			}
		})
	})
	t.Run("and its budget keeps it", func(t *testing.T) {
		stage(t, policy, 120*time.Second, PendingCapacity, surgeScene(1), func(s *scene) {
			s.api.remove("/apis/apps/v1/namespaces/shop/replicasets/web-abc12")
			s.api.mu.Lock()
			s.api.answer = func(string, string, map[string]any) (int, any) { return http.StatusTooManyRequests, refusal(0) }
			s.api.mu.Unlock()
			if _, done, err := s.d.CallOff(s.Context(), "node-a"); err != nil || !done {
				s.Fatalf("done %v, %v; want the node to be as it was all the same", done, err)
			}
		})
	})
}

func TestSweep(t *testing.T) {
	stage(t, holding, 120*time.Second, PendingCapacity, func(f *fakeAPI) {
		surgeScene(1)(f)
		f.pod(webPod("a", readyNow, isSurgedPod))
	}, func(s *scene) {
		drained := true
		sweep := func() {
			s.Helper()
			if err := s.d.Sweep(s.Context(), "", func(string) bool { return drained }); err != nil {
				s.Fatal(err)
			}
		}
		if sweep(); s.labels("a")[SurgedLabel] == nil {
			s.Fatal("put back while its node is drained")
		}
		drained = false
		if sweep(); s.labels("a")[SurgedLabel] != nil || s.labels("a")[hashLabel] != "abc12" {
			s.Errorf("labels %v, want the pod put back", s.labels("a"))
		}
	})
}

// Volumes that were attached for pods which have left are waited for, also in the moment
// in which such a pod has ended and is not gone yet.
func TestVolumesAreWaitedFor(t *testing.T) {
	attachment := "/apis/storage.k8s.io/v1/volumeattachments/va"
	withVolume := pod("a", withGrace(30), withClaim("data"))
	stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
		f.pod(withVolume)
		f.put("/api/v1/namespaces/shop/persistentvolumeclaims/data", object{
			"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": object{"name": "data", "namespace": "shop"},
			"spec": object{"volumeName": "pv"},
		})
		f.put(attachment, object{
			"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": object{"name": "va"},
			"spec": object{"nodeName": "node-a", "source": object{"persistentVolumeName": "pv"}},
		})
	}, func(s *scene) {
		waiting := func(when string) {
			s.Helper()
			s.pass(time.Second)
			if status := s.now(); !status.Moved || status.Done || status.Volumes != 1 {
				s.Fatalf("%s: moved %v, done %v, %d volumes; want to wait for one", when, status.Moved, status.Done, status.Volumes)
			}
		}
		ended := withVolume.DeepCopy()
		ended.DeletionTimestamp, ended.Status.Phase = &metav1.Time{Time: time.Now()}, corev1.PodFailed
		s.api.pod(ended)
		waiting("when the pod has ended")
		s.api.gone("a")
		waiting("when the pod has gone")
		s.api.remove(attachment)
		s.pass(time.Second)
		if !s.now().Done {
			s.Error("not done when the volume is detached")
		}
	})
}

// A pod may have left before the API server says which volumes are attached, or that it does
// not say that.
func TestVolumesThatAreNotKnownYet(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "volumeattachments"}, "", nil)
	for what, answer := range map[string]error{"none": nil, "forbidden": forbidden} {
		t.Run(what, func(t *testing.T) {
			stage(t, holding, 120*time.Second, ReadyCapacity, func(f *fakeAPI) {
				f.pod(pod("a", withGrace(30), withClaim("data")))
				f.hold = func(r *http.Request) error {
					if !strings.HasSuffix(r.URL.Path, "/volumeattachments") {
						return nil
					}
					select {
					case <-time.After(10 * time.Second):
					case <-r.Context().Done():
					}
					return answer
				}
			}, func(s *scene) {
				s.api.gone("a")
				s.pass(time.Second)
				if status := s.now(); !status.Moved || status.Done {
					s.Fatalf("moved %v, done %v; want to wait until it is known", status.Moved, status.Done)
				}
				s.pass(20 * time.Second) // the server is asked for a stream first
				if !s.now().Done {
					s.Error("not done when there is nothing to wait for")
				}
			})
		})
	}
}
