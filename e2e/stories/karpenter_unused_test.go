package stories

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// Three replacements outlive the process that asked for them: one is used, one is not,
// as the pods went elsewhere, and one was never launched and halts all of Karpenter's
// provisioning. The next process finds them by their label, and each gets what it
// needs. Nothing consolidates the pool.
func TestWhatAProcessLeavesBehindIsCleanedUp(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	od := []string{controlplane.OnDemand}
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "spot", Annotations: map[string]string{karpenter.CalmAnnotation: "0"}},
		controlplane.PoolSpec{Name: "good", Capacity: od, CPUs: 2},
		controlplane.PoolSpec{Name: "typeless", Capacity: od, Change: typeless},
	))
	nodes, err := s.cluster.CreateNodes(s.ctx, "spot", 3)
	s.must(err)
	first, end := s.replacerWith(karpenter.Options{Dynamic: s.cluster.Dynamic, FallbackNodePools: map[string]string{"spot": "good"}, TTL: 10 * time.Minute})
	var names []string
	for _, node := range nodes[:2] {
		rec := spotRecord(node, time.Now().Add(2*time.Minute))
		got := first.settle(node, &rec)
		if got.State != provisioner.StateReady {
			t.Fatalf("replacement %+v, want Ready", got)
		}
		names = append(names, got.Name)
	}
	used, _, _ := unstructured.NestedString(s.claim(names[0]).Object, "status", "nodeName")
	s.occupy([]*corev1.Node{s.lastSeen(used)})
	end()
	last, endLast := s.replacerWith(karpenter.Options{Dynamic: s.cluster.Dynamic, FallbackNodePools: map[string]string{"spot": "typeless"}})
	rec := spotRecord(nodes[2], time.Now().Add(2*time.Minute))
	stuck := last.ask(nodes[2], &rec)
	if stuck.State != provisioner.StateRequested {
		t.Fatalf("replacement %+v, want Requested", stuck)
	}
	endLast()

	// No Node has a record: their interruptions are over.
	s.replacerWith(karpenter.Options{Dynamic: s.cluster.Dynamic, TTL: 5 * time.Second})
	for _, name := range []string{names[1], stuck.Name} {
		s.eventually("end of claim "+name, func() bool {
			_, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).Get(s.ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	s.eventually("settlement of the one that is used", func() bool {
		return s.claim(names[0]).GetLabels()["spot-handler/settled"] == "used"
	})
	if claim := s.claim(names[0]); claim.GetDeletionTimestamp() != nil {
		t.Error("the replacement that is used is being deleted")
	}

	// A pool that Karpenter consolidates is left to it.
	s.patchPool("good", `{"spec":{"disruption":{"consolidateAfter":"1h"}}}`)
	node := nodes[1]
	rec = spotRecord(node, time.Now().Add(time.Minute))
	r, _ := s.replacerWith(karpenter.Options{Dynamic: s.cluster.Dynamic, FallbackNodePools: map[string]string{"spot": "good"}, TTL: time.Second})
	got := r.settle(node, &rec)
	s.eventually("settlement of the one that Karpenter takes", func() bool {
		return s.claim(got.Name).GetLabels()["spot-handler/settled"] == "empty"
	})
}

// A replacement registers and is never initialized, as nothing removes its startup taint. Karpenter's consolidation
// removes empty nodes of the pool at once, but not this one: it is returned 15 minutes after its launch, and the time
// to live. The test makes it that old, and begins the next process.
func TestWhatIsNeverInitializedIsReturned(t *testing.T) {
	s := newStory(t, controlplane.Options{Karpenter: true})
	s.must(s.cluster.CreatePools(s.ctx,
		controlplane.PoolSpec{Name: "spot", Annotations: map[string]string{karpenter.CalmAnnotation: "0"}},
		controlplane.PoolSpec{
			Name: "tainted", Capacity: []string{controlplane.OnDemand}, CPUs: 2, ConsolidateAfter: "0s",
			Change: func(pool *unstructured.Unstructured) {
				startup := []any{map[string]any{"key": "example.com/agent-not-ready", "effect": "NoSchedule"}}
				_ = unstructured.SetNestedSlice(pool.Object, startup, "spec", "template", "spec", "startupTaints")
			},
		},
	))
	nodes, err := s.cluster.CreateNodes(s.ctx, "spot", 1)
	s.must(err)
	fallbacks := map[string]string{"spot": "tainted"}
	options := karpenter.Options{Dynamic: s.cluster.Dynamic, FallbackNodePools: fallbacks, TTL: 5 * time.Second}
	r, end := s.replacerWith(options)
	rec := spotRecord(nodes[0], time.Now().Add(5*time.Second)) // no Node has a record: the interruption is over
	name := r.ask(nodes[0], &rec).Name
	is := func(kind string) bool {
		conditions, _, _ := unstructured.NestedSlice(s.claim(name).Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			m, _ := c.(map[string]any)
			return m["type"] == kind && m["status"] == "True"
		})
	}
	s.eventually("registration", func() bool { return is("Registered") })
	time.Sleep(30 * time.Second) // Karpenter removes an initialized one within 20
	if claim := s.claim(name); claim.GetDeletionTimestamp() != nil || claim.GetLabels()["spot-handler/settled"] != "" || is("Initialized") {
		t.Fatalf("claim %v: want it there, not initialized, and ours to look after", claim.Object)
	}

	end()
	long := time.Now().Add(-15 * time.Minute).UTC().Format(time.RFC3339)
	s.eventually("a launch long ago", func() bool {
		claim := s.claim(name)
		conditions, _, _ := unstructured.NestedSlice(claim.Object, "status", "conditions")
		for _, c := range conditions {
			if m, _ := c.(map[string]any); m["type"] == "Launched" {
				m["lastTransitionTime"] = long
			}
		}
		_ = unstructured.SetNestedSlice(claim.Object, conditions, "status", "conditions")
		_, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).UpdateStatus(s.ctx, claim, metav1.UpdateOptions{})
		return err == nil
	})
	s.replacerWith(options) // the next process looks at what there is
	s.eventually("return of the replacement", func() bool {
		_, err := s.cluster.Dynamic.Resource(controlplane.NodeClaims).Get(s.ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

func (s *story) patchPool(name, patch string) {
	s.Helper()
	pools := s.cluster.Dynamic.Resource(controlplane.NodePools)
	_, err := pools.Patch(s.ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
	s.eventually("Karpenter's word on the changed pool "+name, func() bool {
		pool, err := pools.Get(s.ctx, name, metav1.GetOptions{})
		s.must(err)
		conditions, _, _ := unstructured.NestedSlice(pool.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			m, _ := c.(map[string]any)
			generation, named := m["observedGeneration"] // that of Karpenter 1.0 names none
			return m["type"] == "Ready" && m["status"] == "True" && (!named || generation == pool.GetGeneration())
		})
	})
}
