package memapi

import (
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// inBothForms runs f with client-go's own client, once in JSON and once in protobuf.
func inBothForms(t *testing.T, f func(*testing.T, *Server, kubernetes.Interface)) {
	t.Helper()
	for name, form := range map[string]string{"JSON": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New()
				client, err := kubernetes.NewForConfig(&rest.Config{
					Host: "http://api.sim", Transport: s.Client("test"), QPS: -1,
					ContentConfig: rest.ContentConfig{ContentType: form, AcceptContentTypes: form + "," + runtime.ContentTypeJSON},
				})
				if err != nil {
					t.Fatal(err)
				}
				f(t, s, client)
			})
		})
	}
}

func TestObjectsInBothForms(t *testing.T) {
	inBothForms(t, func(t *testing.T, s *Server, client kubernetes.Interface) {
		for _, name := range []string{"a", "b", "c"} {
			put(s, name, "1")
		}
		nodes := client.CoreV1().Nodes()
		first, err := nodes.List(t.Context(), metav1.ListOptions{Limit: 2})
		if err != nil || len(first.Items) != 2 || first.Continue == "" {
			t.Fatalf("first page %v: %v", first, err)
		}
		rest, err := nodes.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: first.Continue})
		if err != nil || len(rest.Items) != 1 || rest.Items[0].Labels["is"] != "1" || rest.ResourceVersion != first.ResourceVersion {
			t.Errorf("second page %v: %v", rest, err)
		}
		patched, err := nodes.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
		if err != nil || !patched.Spec.Unschedulable || patched.Labels["is"] != "1" {
			t.Errorf("patched %v: %v", patched, err)
		}
		if got, err := nodes.Get(t.Context(), "a", metav1.GetOptions{}); err != nil || !got.Spec.Unschedulable {
			t.Errorf("got %v: %v", got, err)
		}
		if _, err := nodes.Get(t.Context(), "d", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("get a missing node: %v", err)
		}
		if err := nodes.Delete(t.Context(), "b", *metav1.NewPreconditionDeleteOptions("another")); !apierrors.IsConflict(err) {
			t.Errorf("delete by the wrong UID: %v", err)
		}
	})
}

func TestUpdateInBothForms(t *testing.T) {
	inBothForms(t, func(t *testing.T, _ *Server, client kubernetes.Interface) {
		leases := client.CoordinationV1().Leases("default")
		made, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if same, err := leases.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil || same.ResourceVersion != made.ResourceVersion {
			t.Errorf("a no-op update gave version %s, was %s: %v", same.ResourceVersion, made.ResourceVersion, err)
		}
		changed := made.DeepCopy()
		changed.Spec.HolderIdentity = new("somebody")
		updated, err := leases.Update(t.Context(), changed, metav1.UpdateOptions{})
		if err != nil || *updated.Spec.HolderIdentity != "somebody" || updated.ResourceVersion == made.ResourceVersion || updated.UID != made.UID {
			t.Errorf("updated %v: %v", updated, err)
		}
		if _, err := leases.Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("update of an old version: %v", err)
		}
		budgets := client.PolicyV1().PodDisruptionBudgets("default") // which have a status
		budget, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		budget.Status.DisruptionsAllowed, budget.Labels = 7, map[string]string{"is": "1"}
		if budget, err = budgets.Update(t.Context(), budget, metav1.UpdateOptions{}); err != nil || budget.Status.DisruptionsAllowed != 0 || budget.Labels["is"] != "1" {
			t.Errorf("updated %v: %v", budget, err)
		}
	})
}

func TestWatchInBothForms(t *testing.T) {
	inBothForms(t, func(t *testing.T, s *Server, client kubernetes.Interface) {
		put(s, "a", "1")
		stream, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{
			SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Stop()
		expect := func(what apiwatch.EventType, name, is string) *corev1.Node {
			t.Helper()
			event := <-stream.ResultChan()
			node, _ := event.Object.(*corev1.Node)
			if event.Type != what || node == nil || node.Name != name || node.Labels["is"] != is {
				t.Fatalf("%s of %v, want %s of %s", event.Type, event.Object, what, name)
			}
			return node
		}
		expect(apiwatch.Added, "a", "1")
		if mark := expect(apiwatch.Bookmark, "", ""); mark.Annotations[metav1.InitialEventsAnnotationKey] != "true" || mark.ResourceVersion == "" {
			t.Errorf("bookmark %v", mark)
		}
		put(s, "a", "2")
		expect(apiwatch.Modified, "a", "2")
		s.Do(func() { s.Remove(Nodes, "a", "test") })
		expect(apiwatch.Deleted, "a", "2")
		time.Sleep(bookmarkEvery)
		if mark := expect(apiwatch.Bookmark, "", ""); mark.Annotations[metav1.InitialEventsAnnotationKey] != "" {
			t.Errorf("bookmark %v", mark)
		}
		s.Do(func() { s.Expire() })
		old, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
		if err != nil {
			t.Fatal(err)
		}
		defer old.Stop()
		if event := <-old.ResultChan(); event.Type != apiwatch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
			t.Errorf("watch an expired version: %v", event)
		}
	})
}

func TestEvictionInBothForms(t *testing.T) {
	inBothForms(t, func(t *testing.T, s *Server, client kubernetes.Interface) {
		meta := metav1.ObjectMeta{Name: "a", Namespace: "shop", Labels: map[string]string{"app": "a"}}
		s.Do(func() {
			s.Put(Pods, &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "node"}, Status: corev1.PodStatus{
				Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			}}, "test")
			s.Put(Budgets, &policyv1.PodDisruptionBudget{
				ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: meta.Labels}},
			}, "test")
		})
		evict := func() error {
			return client.PolicyV1().Evictions("shop").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "shop"}})
		}
		if err := evict(); !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
			t.Errorf("evicted past its budget: %v", err)
		}
		s.Do(func() { s.Remove(Budgets, "shop/a", "test") })
		if err := evict(); err != nil {
			t.Error(err)
		}
		if pod, err := client.CoreV1().Pods("shop").Get(t.Context(), "a", metav1.GetOptions{}); err != nil || pod.DeletionTimestamp == nil {
			t.Errorf("evicted pod %v: %v", pod, err)
		}
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{}, metav1.CreateOptions{})
		if err != nil || !review.Status.Allowed {
			t.Errorf("review %v: %v", review, err)
		}
	})
}
