package karpenter

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// Whoever owns a kubelet can have its Node's record name any NodeClaim as the replacement. Nothing
// is done to one that replaces another instance, or none.
func TestAForgedReplacement(t *testing.T) {
	for name, labels := range map[string]map[string]string{
		"another's replacement": {ReplacesLabel: "i-0aaaaaaaaaaaaaaaa"},
		"a claim of Karpenter":  {nodePoolLabel: "spot"},
	} {
		bubble(t, name, func(t *testing.T) {
			theirs := sourceNodeClaim()
			theirs.SetName("theirs")
			theirs.SetLabels(labels)
			theirs.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-launchTimeout))) // it may be given up from now on
			c, rec := newCluster(t, Options{}, sourcePool(), fallbackPool(t), sourceNodeClaim(), theirs), record()
			rec.Replacement = &interruption.Replacement{Backend: provisioner.Karpenter, Name: "theirs", Pool: "spot", State: provisioner.StateRequested}
			c.request(&rec)
			synctest.Wait() // the claims are known
			c.request(&rec)
			if _, err := c.Tracker().Get(nodeClaimResource, "", "theirs"); err != nil {
				t.Errorf("the claim is gone: %v", err)
			}
			if rec.Replacement.Name == "theirs" {
				t.Errorf("replacement %+v, want one of its own", rec.Replacement)
			}
		})
	}
}

// What is annotated on a NodeClaim can have been edited. It never counts for less than the claim
// asks for, nor for less than one pod.
func FuzzClaimAnnotations(f *testing.F) {
	f.Add(`{"cpu":"4","memory":"16Gi"}`, "7", "2026-01-01T00:00:00Z")
	f.Add(`{"cpu":"-1"}`, "-7", "never")
	f.Add(`{"cpu":"9E999","":"1"}`, "99999999999999999999", "9999-12-31T23:59:59+23:59")
	f.Add(`null`, "", "")
	f.Fuzz(func(t *testing.T, size, pods, until string) {
		asked := resource.MustParse("2")
		claim := &Claim{}
		claim.Annotations = map[string]string{sizeAnnotation: size, podsAnnotation: pods, protectedAnnotation: until}
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: asked}
		sum := withNode(claim.size())
		if cpu := sum[corev1.ResourceCPU]; cpu.Cmp(asked) < 0 {
			t.Errorf("counts for %s CPUs, want %s at least", cpu.String(), asked.String())
		}
		if n := claim.wanted(); n < 1 {
			t.Errorf("made for %d pods", n)
		}
		_ = claim.protectedUntil()
	})
}

// Whatever a NodePool's annotations say, nodes of that pool get an answer, and one that their record can hold.
func FuzzPoolAnnotations(f *testing.F) {
	f.Add("fallback", "replace")
	f.Add("a/b", "../../nodes")
	f.Add("..", "\x1b[31m")
	f.Add("Fallback; touch x", strings.Repeat("x", 200_000))
	f.Add(strings.Repeat("\"", 200_000), "\xff")
	f.Fuzz(func(t *testing.T, fallback, rebalance string) {
		synctest.Test(t, func(t *testing.T) {
			source := sourcePool()
			source.SetAnnotations(map[string]string{FallbackAnnotation: fallback, RebalanceAnnotation: rebalance})
			c, rec := newCluster(t, Options{}, source, fallbackPool(t), sourceNodeClaim()), record()
			r := c.request(&rec)
			if fallback == "fallback" != (r.State == provisioner.StateRequested) && fallback != "" {
				t.Errorf("%+.300v", r)
			}
			r.Reason = interruption.Clip(r.Reason) // as the handler does
			rec.Replacement = &r
			if _, err := interruption.ParseRecord(rec.String()); err != nil {
				t.Error(err)
			}
			if policy, err := c.b.RebalancePolicy(interruptedNode()); err != nil || policy != "" && !slices.Contains(interruption.RebalancePolicies(), policy) {
				t.Errorf("policy %q, %v", policy, err)
			}
		})
	})
}
