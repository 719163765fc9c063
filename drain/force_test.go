package drain

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/drain/plan"
)

// A namespace that asks to leave its pods is asked before one is deleted, however long the
// answer takes.
func TestNoPodIsDeletedBeforeItsNamespaceIsAsked(t *testing.T) {
	stage(t, deleting, 120*time.Second, plan.PendingCapacity, func(f *fakeAPI) {
		pods("a")(f)
		f.put("/api/v1/namespaces/shop", &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{plan.BlockedAnnotation: "leave"}},
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
			s.Error("deleted past its budget, against its namespace's preference")
		}
	})
}

// An eviction is under way when the pod's eviction deadline comes, and is refused a moment
// later: the pod is deleted then, and not when its next attempt would have been.
func TestRefusedOverTheLatestStart(t *testing.T) {
	const latest, moment = 80 * time.Second, 100 * time.Millisecond
	stage(t, deleting, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		pods("a")(f)
		start := time.Now()
		f.hold = func(r *http.Request) error {
			over := time.Until(start.Add(latest + moment))
			if strings.HasSuffix(r.URL.Path, "/eviction") && over < plan.EvictTimeout && over > 0 {
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

// At the latest start a pod that is still refused is deleted, where that is asked for,
// marked first; where not, it is tried to the end.
func TestBlockedAtTheLatestStart(t *testing.T) {
	blocked := func(f *fakeAPI) {
		pods("a")(f)
		f.answer = refuseEvictions
	}
	stage(t, deleting, 120*time.Second, plan.ReadyCapacity, blocked, func(s *scene) {
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
		if r := s.finish("node-a"); r.Forced != 1 || r.Total != 1 {
			s.Errorf("result %+v, want 1 forced", r)
		}
	})
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, blocked, func(s *scene) {
		s.until(119 * time.Second)
		if n := s.api.count("DELETE", "/pods/a"); n != 0 {
			s.Fatal("deleted past its budget, which nobody has asked for")
		}
		if r := s.finish("node-a"); r.Left != 1 || r.Refusal != "no needs 10" {
			s.Errorf("result %+v, want 1 left", r)
		}
		if last := s.events.all()[len(s.events.all())-1]; last != "left a: no needs 10" {
			s.Errorf("last event %q", last)
		}
	})
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
		blocked(f)
		f.put("/api/v1/namespaces/shop", &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{plan.BlockedAnnotation: "delete"}},
		})
	}, func(s *scene) {
		s.until(80 * time.Second)
		if n := s.api.count("DELETE", "/pods/a"); n != 1 {
			s.Errorf("deleted %d times, want once: its namespace asks for it", n)
		}
	})
}

// An admission policy denies that the condition DisruptionTarget be set, or a webhook for it hangs: the pod is
// deleted all the same.
func TestForceWithoutTheCondition(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(path string) (int, any)
		hold   time.Duration
	}{
		"denied": {answer: func(string) (int, any) {
			return http.StatusForbidden, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: "denied by policy"}
		}},
		"hangs": {hold: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			stage(t, deleting, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
				pods("a")(f)
				isMark := func(method, path string) bool {
					return method == http.MethodPatch && strings.HasSuffix(path, "/status")
				}
				f.hold = func(r *http.Request) error {
					if tt.hold == 0 || !isMark(r.Method, r.URL.Path) {
						return nil
					}
					select {
					case <-time.After(tt.hold):
						return nil
					case <-r.Context().Done():
						return r.Context().Err()
					}
				}
				f.answer = func(method, path string, body map[string]any) (int, any) {
					if tt.answer != nil && isMark(method, path) {
						return tt.answer(path)
					}
					return refuseEvictions(method, path, body)
				}
			}, func(s *scene) {
				s.until(83 * time.Second) // its eviction deadline is at 80 s
				if n := s.api.count("DELETE", "/pods/a"); n != 1 {
					s.Errorf("deleted %d times, want once", n)
				}
				if last := s.events.all()[len(s.events.all())-1]; !strings.HasPrefix(last, "forced a: ") {
					s.Errorf("last Event %q, want that it was deleted", last)
				}
			})
		})
	}
}
