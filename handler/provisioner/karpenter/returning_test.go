package karpenter

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// returning is a cluster with a replacement that stands in for a node of spotPool, and who is asked to bring it
// back.
type returning struct {
	*cluster
	notices []interruption.Notice
	node    *corev1.Node // the replacement's
	verdict interruption.Verdict
}

const (
	standInInstance = "i-0fedcba9876543210"
	wayBackClaim    = "spot-" + standInInstance + "-spot"
)

func newReturning(t *testing.T, pool, fallback *unstructured.Unstructured) *returning {
	t.Helper()
	r := &returning{}
	r.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: replacementNode,
			Labels: map[string]string{
				nodePoolLabel: "fallback", capacityTypeLabel: onDemand,
				corev1.LabelTopologyZone: "eu-west-1b", corev1.LabelInstanceTypeStable: "m5.large",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claimName, UID: "uid-of-" + claimName}},
		},
		Spec: corev1.NodeSpec{ProviderID: "aws:///eu-west-1b/" + standInInstance},
	}
	rec := record()
	r.cluster = newCluster(t, Options{
		TTL: 10 * time.Minute,
		Return: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			r.notices = append(r.notices, n)
			if r.verdict != "" {
				return r.verdict, nil
			}
			r.node = withRecord(r.node.DeepCopy(), interruption.NewRecord(n))
			return interruption.Accepted, nil
		},
		Node: func(name string) (*corev1.Node, bool) { return r.node, name == replacementNode },
	}, pool, fallback, sourceNodeClaim())
	r.remember()
	r.lose()
	r.nodes.put(withRecord(offered(), rec))
	r.nodes.put(r.node)
	if _, err := r.p.Request(t.Context(), offered(), rec, need()); err != nil {
		t.Fatal(err)
	}
	r.ready()
	r.patchClaim(claimName, set("aws:///eu-west-1b/"+standInInstance, "status", "providerID"))
	r.nodes.land(pod(), pod())
	rec.Phase = interruption.Released
	r.nodes.put(withRecord(offered(), rec))
	return r
}

func (r *returning) claim(name string) *unstructured.Unstructured {
	r.t.Helper()
	synctest.Wait()
	u, err := r.Tracker().Get(nodeClaimResource, "", name)
	if err != nil {
		return nil
	}
	return u.(*unstructured.Unstructured)
}

func (r *returning) patchClaim(name string, change func(*unstructured.Unstructured)) {
	r.t.Helper()
	claim := r.claim(name).DeepCopy()
	change(claim)
	claim.SetResourceVersion("20")
	if err := r.Tracker().Update(nodeClaimResource, claim, ""); err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
}

// recommended is the record of the node that is to go back.
func (r *returning) recommended() interruption.Record {
	r.t.Helper()
	if len(r.notices) == 0 {
		r.t.Fatal("it is not recommended")
	}
	return interruption.NewRecord(r.notices[len(r.notices)-1])
}

// order asks for the replacement that brings the node back.
func (r *returning) order(rec interruption.Record, need provisioner.Need) interruption.Replacement {
	r.t.Helper()
	got, err := r.p.Request(r.t.Context(), r.node, rec, need)
	if err != nil {
		r.t.Fatal(err)
	}
	synctest.Wait()
	return got
}

// shown is what the Node says about why it is held.
func (r *returning) shown() (h Held) {
	r.t.Helper()
	synctest.Wait()
	r.nodes.mu.Lock()
	defer r.nodes.mu.Unlock()
	for _, patch := range slices.Backward(r.nodes.patches) {
		if _, data, _ := strings.Cut(patch, " "); strings.Contains(data, HeldAnnotation) {
			var p struct {
				Metadata struct {
					Annotations map[string]string `json:"annotations"`
				} `json:"metadata"`
			}
			if err := json.Unmarshal([]byte(data), &p); err != nil {
				r.t.Fatal(err)
			}
			return HeldOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: p.Metadata.Annotations}})
		}
	}
	return Held{}
}

func (r *returning) wantShown(why string, in time.Duration) {
	r.t.Helper()
	h := r.shown()
	if !strings.Contains(h.Why, why) || (time.Until(h.Until)-in).Abs() > 2*heldCheck {
		r.t.Errorf("held until %s from now (%s), want %s (%s)", time.Until(h.Until), h.Why, in, why)
	}
}
