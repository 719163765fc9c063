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
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/karpenter"
)

// With its feature gate NodeOverlay, Karpenter does not walk back by itself into an offering that was
// lost. Spot pools have a cheap instance type and a dearer one. EC2 takes a cheap node. Its pod goes to
// an on-demand node, and Karpenter's consolidation moves it back to spot: to the dearer type, since the
// cheap one seems to cost more than on demand. When the loss is forgotten, the overlay goes, and the
// same consolidation of another on-demand node takes the cheap type.
//
// kwok's provider launches by prices of its own. That of AWS goes by an annotation, with which Karpenter
// marks NodeClaims that allow a type with another price: it has EC2 take the types in the order of their
// prices, as far as there is capacity (CreateFleetInputBuilder in its pkg/providers/instance).
func TestKarpenterAvoidsWhatWasLost(t *testing.T) {
	s := tellApart(long(t), controlplane.Options{Karpenter: true, FeatureGates: "NodeOverlay=true"})
	const cheap, dear, zone = "s-4x-amd64-linux", "m-4x-amd64-linux", "test-zone-a"
	if _, has := s.overlays(); !has {
		t.Skip("this version of Karpenter has no NodeOverlays")
	}
	for _, name := range []string{"soon", "later"} {
		s.must(s.cluster.CreatePools(s.ctx,
			controlplane.PoolSpec{Name: name, Weight: 100, CPUs: 4, Zones: []string{zone}, Labels: team(name),
				Annotations: map[string]string{"spot-handler/fallback-nodepool": name + "-od", "spot-handler/calm": "0"},
				Change: func(pool *unstructured.Unstructured) {
					requirements, _, _ := unstructured.NestedSlice(pool.Object, "spec", "template", "spec", "requirements")
					requirements[1].(map[string]any)["values"] = []any{cheap, dear}
					s.must(unstructured.SetNestedSlice(pool.Object, requirements, "spec", "template", "spec", "requirements"))
				}},
			controlplane.PoolSpec{Name: name + "-od", CPUs: 4, Labels: team(name), Capacity: []string{controlplane.OnDemand}}))
	}
	// back has Karpenter consolidate the team's on-demand node, and returns the type of the spot node that
	// its pod goes to.
	back := func(name string) string {
		s.Helper()
		s.homeOf(name, controlplane.OnDemand, 1)
		s.patchPool(name+"-od", `{"spec":{"disruption":{"consolidateAfter":"0s"}}}`)
		return s.lastSeen(s.homeOf(name, controlplane.Spot, 1)).Labels[corev1.LabelInstanceTypeStable]
	}
	serve := func(name string) {
		s.Helper()
		s.service(name, 1, surge(1, func(d *controlplane.DeploymentSpec) { d.CPU, d.NodeSelector = "1500m", team(name) }))
	}

	node := s.node("soon")
	if got := node.Labels[corev1.LabelInstanceTypeStable]; got != cheap {
		t.Fatalf("the spot node is a %s, want the cheapest, %s", got, cheap)
	}
	serve("soon")
	server, queue := s.sqs()
	d := s.runQueue(server, queue)
	interrupt(queue, node.Name, 2*time.Minute)
	s.waitGone(node.Name)
	s.eventually("one overlay that Karpenter heeds", func() bool {
		items, _ := s.overlays()
		if len(items) != 1 || items[0].GetName() != "spot-handler-"+cheap+"-"+zone {
			return false
		}
		conditions, _, _ := unstructured.NestedSlice(items[0].Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			condition := c.(map[string]any)
			return condition["type"] == "Ready" && condition["status"] == "True"
		})
	})
	if got := back("soon"); got != dear {
		t.Errorf("while %s is lost, Karpenter moved the pod to a %s, want a %s", cheap, got, dear)
	}
	launched := func(name string) (marked bool) {
		s.Helper()
		s.service(name+"-more", 1, func(d *controlplane.DeploymentSpec) { d.CPU, d.NodeSelector = "3", team(name) })
		home := s.homeOf(name+"-more", controlplane.Spot, 1)
		claim := s.lastSeen(home).OwnerReferences[0].Name
		return s.claim(claim).GetAnnotations()["karpenter.sh/price-overlay-applied"] == "true"
	}
	if !launched("soon") {
		t.Errorf("the NodeClaim for a pending pod is not marked")
	}

	d.Kill()
	_, err := s.cluster.Client.CoreV1().ConfigMaps(namespace).Patch(s.ctx, offerings.ConfigMap, types.MergePatchType, []byte(`{"data":null}`), metav1.PatchOptions{})
	s.must(err)
	s.node("later-od")
	serve("later")
	s.runQueue(server, queue)
	s.eventually("no overlay", func() bool {
		items, _ := s.overlays()
		return len(items) == 0
	})
	if got := back("later"); got != cheap {
		t.Errorf("after the loss is forgotten, Karpenter moved the pod to a %s, want the cheapest, %s", got, cheap)
	}
	if launched("later") {
		t.Errorf("the NodeClaim for a pending pod is still marked")
	}
}

// overlays are the NodeOverlays of spot-handler; false if this version of Karpenter has none.
func (s *story) overlays() ([]unstructured.Unstructured, bool) {
	s.Helper()
	list, err := s.cluster.Dynamic.Resource(controlplane.NodeOverlays).List(s.ctx, metav1.ListOptions{LabelSelector: karpenter.ManagedLabel})
	if apierrors.IsNotFound(err) {
		return nil, false
	}
	s.must(err)
	return list.Items, true
}
