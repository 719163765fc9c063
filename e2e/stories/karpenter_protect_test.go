package stories

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// putRecord writes the record on the Node, as the handler does.
func (s *story) putRecord(node *corev1.Node, rec interruption.Record) {
	s.Helper()
	patch, err := (&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"annotations": map[string]any{interruption.Annotation: rec.String()}},
	}}).MarshalJSON()
	s.must(err)
	_, err = s.cluster.Client.CoreV1().Nodes().Patch(s.ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
}

const doNotDisrupt = "karpenter.sh/do-not-disrupt"

// The fallback pool consolidates at once: consolidateAfter 0s. An empty replacement
// would be gone 18 s after it is Ready. It waits for its pod under protection, and is
// Karpenter's again as soon as that has come.
func TestReplacementIsProtectedUntilItsPodsCome(t *testing.T) {
	s := newStory(long(t), controlplane.Options{Karpenter: true})
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "spot", Weight: 100, Annotations: map[string]string{karpenter.CalmAnnotation: "0"}},
		controlplane.PoolSpec{Name: "eager", Capacity: []string{controlplane.OnDemand}, ConsolidateAfter: "0s"},
	))
	node := s.node("spot")
	rec := spotRecord(node, time.Now().Add(10*time.Minute)) // the protection ends with it
	s.putRecord(node, rec)
	r := s.replacer(s.cluster.Dynamic, nil)
	got := r.settle(node, &rec)
	if got.State != provisioner.StateReady || got.Pool != "eager" {
		t.Fatalf("replacement %+v, want one Ready in pool eager", got)
	}
	name, _, _ := unstructured.NestedString(s.claim(got.Name).Object, "status", "nodeName")
	if n := s.lastSeen(name); n.Annotations[doNotDisrupt] != "true" {
		t.Fatalf("annotations of the replacement %v, want %s among them", n.Annotations, doNotDisrupt)
	}
	// An unprotected copy shows when Karpenter has looked at both.
	bare := s.claim(got.Name)
	unstructured.RemoveNestedField(bare.Object, "status")
	bare.SetName("unprotected")
	bare.SetUID("")
	bare.SetResourceVersion("")
	bare.SetFinalizers(nil)
	annotations := bare.GetAnnotations()
	delete(annotations, doNotDisrupt)
	bare.SetAnnotations(annotations)
	labels := bare.GetLabels()
	delete(labels, "spot-handler/replaces")
	bare.SetLabels(labels)
	_, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).Create(s.ctx, bare, metav1.CreateOptions{})
	s.must(err)
	s.eventually("consolidation of the unprotected claim", func() bool {
		_, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).Get(s.ctx, "unprotected", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if claim := s.claim(got.Name); claim.GetDeletionTimestamp() != nil || claim.GetAnnotations()[doNotDisrupt] != "true" {
		t.Fatalf("the replacement is no longer protected: %v", claim.Object["metadata"])
	}

	// The pod comes.
	s.service("web", 1, func(d *controlplane.DeploymentSpec) { d.Pool = "eager" })
	s.eventually("end of the protection", func() bool {
		claim, n := s.claim(got.Name), s.lastSeen(name)
		return claim.GetAnnotations()[doNotDisrupt] == "" && claim.GetAnnotations()["spot-handler/protected-until"] == "" && n.Annotations[doNotDisrupt] == ""
	})
	// And goes: Karpenter takes the node back by itself.
	s.must(s.cluster.Client.AppsV1().Deployments("default").Delete(s.ctx, "web", metav1.DeleteOptions{}))
	s.waitGone(name)
}
