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

	"spot-handler/drain/plan"
)

// Volumes that were attached for pods which have left are waited for, also in the moment
// in which such a pod has ended and is not gone yet.
func TestVolumesAreWaitedFor(t *testing.T) {
	attachment := "/apis/storage.k8s.io/v1/volumeattachments/va"
	withVolume := pod("a", withGrace(30), withClaim("data"))
	stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
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
			stage(t, holding, 120*time.Second, plan.ReadyCapacity, func(f *fakeAPI) {
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
