package stories

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/controlplane"
)

// A StatefulSet makes its pods again under the same names. Those are not the ones that
// were to leave, and stay where they are: also the one whose predecessor was waiting
// for its budget when somebody else deleted it.
func TestStatefulSetPodsAreNotEvictedAgain(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	spec := controlplane.DeploymentSpec{Name: "db", Replicas: 5, BudgetMinAvailable: budget(4)}
	quick(&spec)
	_, err := s.cluster.RunStatefulSet(s.ctx, spec)
	s.must(err)
	before, err := s.cluster.WaitReady(s.ctx, "default", "db", 5)
	s.must(err)
	s.bare("spare", 1, 8)
	d, queue := s.drill()

	interrupt(queue, node.Name, 100*time.Second)
	s.eventually("a pod that waits for its budget", func() bool { return s.metric(d, "spot_handler_blocked_pods") > 0 })
	var deleted *corev1.Pod
	s.eventually("deletion of a pod by somebody else", func() bool {
		taken := s.evictions()
		for _, p := range before {
			if taken[string(p.UID)] == 0 {
				deleted = p
			}
		}
		if deleted == nil {
			t.Fatal("all pods were evicted before anybody could delete one")
		}
		return s.cluster.Client.CoreV1().Pods("default").Delete(s.ctx, deleted.Name, metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(deleted.UID)),
		}) == nil
	})

	s.wantResults(d, map[string]result{node.Name: {graceful: 5}})
	evictable := uids(before)
	if s.evictions()[string(deleted.UID)] == 0 { // the eviction was not a moment faster
		delete(evictable, deleted.UID)
	}
	s.wantEachOnce(evictable)

	after, err := s.cluster.WaitReady(s.ctx, "default", "db", 5)
	s.must(err)
	// How many pods were made says nothing: kwok, the kubelet here, deletes by name, and on a
	// busy machine sometimes a replacement pod together with the one it replaces.
	for _, r := range s.requests(func(r request) bool {
		return r.ObjectRef.Resource == "pods" && (r.Verb == "delete" || r.Verb == "patch")
	}) {
		t.Errorf("the daemon sent %s %s/%s: %d, want evictions only", r.Verb, r.ObjectRef.Name, r.ObjectRef.Subresource, r.ResponseStatus.Code)
	}
	for _, p := range after {
		if p.Spec.NodeName == node.Name {
			t.Errorf("pod %s is on the interrupted node", p.Name)
		}
	}
}
