package karpenter

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
)

func TestRelease(t *testing.T) {
	timestamp := func(t *testing.T, c *cluster) string {
		t.Helper()
		for _, a := range c.Actions() {
			if p, ok := a.(clienttesting.PatchAction); ok {
				return string(p.GetPatch())
			}
		}
		t.Fatal("no patch")
		return ""
	}
	refuse := func(c *cluster, verb string, err error) {
		c.PrependReactor(verb, "nodeclaims", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	}
	conflict := apierrors.NewConflict(nodeClaimResource.GroupResource(), "spot-abcde", errors.New("precondition"))

	bubble(t, "deadline", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		if err := c.p.Terminate(t.Context(), interruptedNode(), rec); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`[{"op":"test","path":"/metadata/uid","value":"source-uid"},{"op":"test","path":"/status/providerID","value":%q},`+
			`{"op":"add","path":"/metadata/annotations/karpenter.sh~1nodeclaim-termination-timestamp","value":%q}]`, interruptedNode().Spec.ProviderID, rec.Deadline.Format(time.RFC3339))
		if got := timestamp(t, c); got != want {
			t.Errorf("patch %s, want %s", got, want)
		}
		for _, a := range c.Actions() {
			if d, ok := a.(clienttesting.DeleteActionImpl); ok {
				if p := d.DeleteOptions.Preconditions; p == nil || p.UID == nil || *p.UID != "source-uid" {
					t.Errorf("preconditions %v, want the UID", p)
				}
			}
		}
		c.wantCalls("patch nodeclaims", "delete nodeclaims")
	})
	bubble(t, "the instance comes back", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		rec.Action = interruption.ActionStop
		if err := c.p.Terminate(t.Context(), interruptedNode(), rec); err != nil {
			t.Fatal(err)
		}
		c.wantCalls()
	})
	bubble(t, "deadline past", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		rec.Deadline = time.Now().Add(-time.Minute)
		if err := c.p.Terminate(t.Context(), interruptedNode(), rec); err != nil {
			t.Fatal(err)
		}
		if now := time.Now().UTC().Format(time.RFC3339); !strings.Contains(timestamp(t, c), now) {
			t.Errorf("patch %s, want %s", timestamp(t, c), now)
		}
	})
	for name, grace := range map[string]int64{"no deadline": 90, "no deadline, a grace of days": 7 * 24 * 3600} {
		bubble(t, name, func(t *testing.T) {
			node := interruptedNode()
			stays := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"},
				Spec: corev1.PodSpec{NodeName: node.Name, TerminationGracePeriodSeconds: &grace}}
			c, rec := newCluster(t, Options{}), record()
			c.nodes.pods = append(c.nodes.pods, *stays)
			rec.Kind, rec.Deadline = interruption.RebalanceRecommendation, time.Time{}
			if err := c.p.Terminate(t.Context(), node, rec); err != nil {
				t.Fatal(err)
			}
			want := time.Now().Add(min(time.Duration(grace)*time.Second, longestPatience) + endsLate).UTC().Format(time.RFC3339)
			if !strings.Contains(timestamp(t, c), want) {
				t.Errorf("patch %s, want %s", timestamp(t, c), want)
			}
		})
	}
	bubble(t, "another claim has the name", func(t *testing.T) {
		other := sourceNodeClaim()
		other.SetUID("other")
		c := newCluster(t, Options{}, other)
		refuse(c, "patch", apierrors.NewInvalid(schema.GroupKind{Group: karpenterGroup, Kind: "NodeClaim"}, "spot-abcde", nil))
		if err := c.p.Terminate(t.Context(), interruptedNode(), record()); err != nil {
			t.Error(err)
		}
		c.wantCalls("patch nodeclaims", "get nodeclaims")
	})
	// Whoever owns a kubelet can make its Node with any owner.
	bubble(t, "the claim is of another node", func(t *testing.T) {
		other := sourceNodeClaim()
		set("aws:///eu-west-1b/i-0fedcba9876543210", "status", "providerID")(other)
		c := newCluster(t, Options{}, other)
		refuse(c, "patch", apierrors.NewInvalid(schema.GroupKind{Group: karpenterGroup, Kind: "NodeClaim"}, "spot-abcde", nil))
		if err := c.p.Terminate(t.Context(), interruptedNode(), record()); err != nil {
			t.Error(err)
		}
		c.wantCalls("patch nodeclaims", "get nodeclaims")
	})
	// Before Karpenter has registered the Node nobody knows whose NodeClaim is its owner.
	bubble(t, "not registered yet", func(t *testing.T) {
		c, node := newCluster(t, Options{}), interruptedNode()
		node.OwnerReferences = nil
		node.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute}}
		if err := c.p.Terminate(t.Context(), node, record()); err == nil {
			t.Error("no error, want one that has the caller try again")
		}
		c.wantCalls()
	})
	bubble(t, "lost race", func(t *testing.T) {
		c := newCluster(t, Options{})
		refuse(c, "patch", conflict)
		if err := c.p.Terminate(t.Context(), interruptedNode(), record()); err == nil {
			t.Error("no error, want one that has the caller try again")
		}
		c.wantCalls("patch nodeclaims", "get nodeclaims")
	})
	bubble(t, "forbidden", func(t *testing.T) {
		c := newCluster(t, Options{})
		refuse(c, "patch", apierrors.NewForbidden(nodeClaimResource.GroupResource(), "spot-abcde", nil))
		for range 3 {
			if err := c.p.Terminate(t.Context(), interruptedNode(), record()); err != nil {
				t.Error(err)
			}
		}
		if lines := strings.Count(c.log.String(), "\n"); lines != 1 {
			t.Errorf("%d log lines, want 1:\n%s", lines, c.log.String())
		}
	})
	bubble(t, "transient", func(t *testing.T) {
		c := newCluster(t, Options{})
		refuse(c, "delete", apierrors.NewServiceUnavailable("starting"))
		if err := c.p.Terminate(t.Context(), interruptedNode(), record()); err == nil {
			t.Error("no error, want a transient one")
		}
	})
	bubble(t, "not Karpenter's", func(t *testing.T) {
		c, node := newCluster(t, Options{}), interruptedNode()
		node.OwnerReferences = nil
		if err := c.p.Terminate(t.Context(), node, record()); err != nil {
			t.Error(err)
		}
		c.wantCalls()
	})
}
