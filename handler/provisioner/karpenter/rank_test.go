package karpenter

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// plain is a pool that takes any pod, of the given weight.
func plain(t *testing.T, name string, weight int64, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	t.Helper()
	return fallbackPool(t, append([]func(*unstructured.Unstructured){
		func(u *unstructured.Unstructured) {
			u.SetName(name)
			for _, path := range [][]string{{"spec", "template", "spec", "taints"}, {"spec", "template", "metadata", "labels"}, {"spec", "limits"}} {
				unstructured.RemoveNestedField(u.Object, path...)
			}
		},
		requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand"]}]`),
		set(weight, "spec", "weight"),
		set("Never", "spec", "disruption", "consolidateAfter"),
	}, change...)...)
}

func labeled(key, value string) func(*unstructured.Unstructured) {
	return set(map[string]any{key: value}, "spec", "template", "metadata", "labels")
}

var spotOnly = requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]}]`)

// Each pool is better than the one after it by one thing alone.
func TestRank(t *testing.T) {
	tainted := set([]any{map[string]any{"key": "x", "effect": "NoSchedule"}}, "spec", "template", "spec", "taints")
	source := decodePool(plain(t, "spot", 50, spotOnly, labeled("team", "web")))
	inA := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand"]},{"key":"topology.kubernetes.io/zone","operator":"In","values":["a"]}]`)
	want := []*unstructured.Unstructured{
		plain(t, "z-alike-high", 40, labeled("team", "web")),
		plain(t, "a-alike-low", 30, labeled("team", "web")),
		plain(t, "b-alike-low", 30, labeled("team", "web")),
		plain(t, "a-alike-above", 60, labeled("team", "web")),
		plain(t, "a-tainted", 40, labeled("team", "web"), tainted),
		plain(t, "b-other-labels", 40, labeled("team", "web"), func(u *unstructured.Unstructured) {
			set("x", "spec", "template", "metadata", "labels", "more")(u)
		}),
		plain(t, "a-fewer", 49, labeled("team", "web"), inA),
	}
	p, q := pod(container("1", "")), selects(corev1.LabelTopologyZone, "b")
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	q.Spec.Tolerations = p.Spec.Tolerations
	s := lostNode{node: interruptedNode(), rec: record(), source: source, need: provisioner.Need{Moving: []*corev1.Pod{p, q}}}
	for range 20 {
		var list []candidate
		for _, i := range rand.Perm(len(want)) {
			list = append(list, candidate{pool: decodePool(want[i])})
		}
		for i, o := range s.rank(list) {
			if o.pool.Name != want[i].GetName() {
				t.Fatalf("place %d: %s, want %s", i, o.pool.Name, want[i].GetName())
			}
		}
	}
}

func TestProtectedUntil(t *testing.T) {
	for name, tt := range map[string]struct {
		after    any
		deadline time.Duration
		want     bool
	}{
		"at once":                        {"0s", 2 * time.Minute, true},
		"before the end":                 {"30s", 2 * time.Minute, true},
		"after the end":                  {"5m", 2 * time.Minute, false},
		"never":                          {"Never", 2 * time.Minute, false},
		"default":                        {"", 2 * time.Minute, true},
		"no deadline":                    {"2m", 0, true},
		"no deadline, consolidated late": {"10m", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			rec := record()
			rec.Deadline = nil
			if tt.deadline > 0 {
				end := time.Now().Add(tt.deadline)
				rec.Deadline = &end
			}
			got := lostNode{rec: rec}.protectedUntil(pool(t, set(tt.after, "spec", "disruption", "consolidateAfter")))
			if got.IsZero() == tt.want {
				t.Errorf("protectedUntil() = %s, want one: %t", got, tt.want)
			}
		})
	}
}

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
		"the node may be larger than its pods": {
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{plain(t, "a", 40, set(map[string]any{"cpu": "107"}, "spec", "limits")), plain(t, "b", 1)}
			},
			claim: set("8", "status", "capacity", "cpu"), // what is known of a Node does not say
			pool:  "b",
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

// What was said stays when the pods have left.
func TestFailureOutlastsThePods(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := automatic(t, Options{}, plain(t, "a", 40, set(map[string]any{"cpu": "100"}, "spec", "limits"))), record()
		before := c.request(&rec)
		wantState(t, before, provisioner.StateFailed, "leaves no room")
		after, err := c.p.Request(t.Context(), interruptedNode(), rec, provisioner.Need{})
		if err != nil || after != before {
			t.Errorf("Request: %+v, %v; want %+v", after, err, before)
		}
	})
}

// Pools are tried one after the other, each once, across processes.
func TestNextPool(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c, rec := automatic(t, Options{}, plain(t, "a", 40), plain(t, "b", 30), plain(t, "c", 20)), record()
		drop := func(name string) {
			if err := c.Tracker().Delete(nodeClaimResource, "", name); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		var seen []string
		for _, want := range []string{"a", "b", "c"} {
			r := c.request(&rec)
			if r.Pool != want || r.State != provisioner.StateRequested || r.Tried != strings.Join(seen, ",") {
				t.Fatalf("replacement %+v, want one in %s after %q", r, want, seen)
			}
			if want != "a" && !strings.Contains(r.Reason, "NodePool "+seen[len(seen)-1]+": insufficient capacity") {
				t.Errorf("reason %q, want why not %s", r.Reason, seen[len(seen)-1])
			}
			seen = append(seen, want)
			drop(r.Name)
			if want == "b" { // another process goes on from the record
				next := automatic(t, Options{}, plain(t, "a", 40), plain(t, "b", 30), plain(t, "c", 20))
				again := rec
				next.request(&again) // its watch has only just begun
				if r := next.request(&again); r.Pool != "c" || r.Tried != "a,b" {
					t.Errorf("next process: %+v, want one in c after a and b", r)
				}
			}
		}
		for range 3 {
			r := c.request(&rec)
			wantState(t, r, provisioner.StateFailed, "none suits")
			if r.Tried != "a,b,c" || r.Pool != "c" {
				t.Errorf("replacement %+v, want a, b, c tried", r)
			}
		}
		c.wantCount("failed", 3)
		c.wantCount("requested", 3)
	})
}
