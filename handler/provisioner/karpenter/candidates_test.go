package karpenter

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// automatic is a cluster in which nobody has named a fallback.
func automatic(t *testing.T, opts Options, pools ...runtime.Object) *cluster {
	t.Helper()
	source := plain(t, "spot", 50, spotOnly)
	return newCluster(t, opts, append(pools, source, sourceNodeClaim())...)
}

func TestAutomaticChoice(t *testing.T) {
	for name, tt := range map[string]struct {
		pools  func(*testing.T) []runtime.Object
		change func(*interruption.Record, *corev1.Node, *provisioner.Need)
		claim  func(*unstructured.Unstructured) // of the interrupted node
		pool   string
		reason string
	}{
		"nothing but spot": {
			pools:  func(t *testing.T) []runtime.Object { return []runtime.Object{plain(t, "spot-2", 1, spotOnly)} },
			reason: "none suits: spot has no on-demand instances; spot-2 has no on-demand instances",
		},
		"not the unfit": {
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{
					plain(t, "a", 40, set(int64(2), "spec", "replicas")),
					plain(t, "b", 40, set([]any{}, "status", "conditions")),
					plain(t, "c", 40, set("GKENodeClass", "spec", "template", "spec", "nodeClassRef", "kind")),
					plain(t, "d", 40, set("x", "spec", "limits")),
					plain(t, "e", 1),
				}
			},
			pool: "e",
		},
		"the better one is full": {
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{plain(t, "a", 40, set(map[string]any{"cpu": "100"}, "spec", "limits")), plain(t, "b", 1)}
			},
			pool: "b",
		},
		"all are full": {
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{plain(t, "a", 40, set(map[string]any{"cpu": "100"}, "spec", "limits"))}
			},
			reason: "limit of NodePool a leaves no room",
		},
		"the node was larger than its pods": {
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{plain(t, "a", 40, set(map[string]any{"cpu": "107"}, "spec", "limits")), plain(t, "b", 1)}
			},
			claim: set("8", "status", "capacity", "cpu"), // of which 7 are left
			pool:  "a",
		},
		"pinned pods": {
			pools: func(t *testing.T) []runtime.Object { return []runtime.Object{plain(t, "a", 40)} },
			change: func(_ *interruption.Record, _ *corev1.Node, n *provisioner.Need) {
				n.Moving = []*corev1.Pod{selects(nodePoolLabel, "spot"), selects(capacityTypeLabel, "spot")}
			},
			reason: "NodePool a takes none of the pods: default/web needs karpenter.sh/capacity-type=spot; default/web needs karpenter.sh/nodepool=spot",
		},
		"rebalance": {
			pools: func(t *testing.T) []runtime.Object { return []runtime.Object{plain(t, "mixed", 40)} },
			change: func(r *interruption.Record, n *corev1.Node, _ *provisioner.Need) {
				r.Kind, n.Labels[nodePoolLabel] = interruption.RebalanceRecommendation, "mixed"
			},
			reason: "mixed is the one that the node is to leave",
		},
		"interruption of the same": {
			pools:  func(t *testing.T) []runtime.Object { return []runtime.Object{plain(t, "mixed", 40)} },
			change: func(_ *interruption.Record, n *corev1.Node, _ *provisioner.Need) { n.Labels[nodePoolLabel] = "mixed" },
			pool:   "mixed",
		},
	} {
		bubble(t, name, func(t *testing.T) {
			c, rec, node, n := automatic(t, Options{}, tt.pools(t)...), record(), interruptedNode(), need()
			if tt.change != nil {
				tt.change(&rec, node, &n)
			}
			if tt.claim != nil {
				claim := sourceNodeClaim()
				tt.claim(claim)
				if err := c.Tracker().Update(nodeClaimResource, claim, ""); err != nil {
					t.Fatal(err)
				}
			}
			r, err := c.p.Request(t.Context(), node, rec, n)
			if err != nil || r.Pool != tt.pool && tt.reason == "" || !strings.Contains(r.Reason, tt.reason) || (tt.pool != "") != (r.State == provisioner.StateRequested) {
				t.Errorf("Request: %+v, %v; want pool %q, reason %q", r, err, tt.pool, tt.reason)
			}
		})
	}
}
