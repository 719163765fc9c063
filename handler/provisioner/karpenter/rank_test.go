package karpenter

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
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
				t.Fatalf("rank %d: %s, want %s", i, o.pool.Name, want[i].GetName())
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
			rec.Deadline = time.Time{}
			if tt.deadline > 0 {
				end := time.Now().Add(tt.deadline)
				rec.Deadline = end
			}
			got := lostNode{rec: rec}.protectedUntil(candidate{pool: pool(t, set(tt.after, "spec", "disruption", "consolidateAfter"))})
			if got.IsZero() == tt.want {
				t.Errorf("protectedUntil() = %s, want one: %t", got, tt.want)
			}
		})
	}
}

// The node's own pool is never chosen for a node at risk, and one that was hit lately comes
// after those that were not.
func TestPoolHitLatelyIsNotChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mixed := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot","on-demand"]}]`)
		spot := plain(t, "spot", 90, mixed)
		spot.SetAnnotations(nil)
		c := newCluster(t, Options{RebalanceCapacity: Fallback}, spot, plain(t, "best", 80, mixed), plain(t, "second", 10), sourceNodeClaim())
		at := func(pool, instance string, kind interruption.Kind) interruption.Replacement {
			node, rec := interruptedNode(), record()
			node.Labels[nodePoolLabel], rec.Instance, rec.Kind = pool, instance, kind
			if kind == interruption.RebalanceRecommendation {
				rec.Deadline = time.Time{}
			}
			node.Labels[corev1.LabelInstanceTypeStable] = "m5.large"
			c.taken.Note(node, rec)
			r, err := c.p.Request(t.Context(), node, rec, provisioner.Need{Moving: []*corev1.Pod{pod(container("1", ""))}})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		if r := at("spot", "i-1", interruption.RebalanceRecommendation); r.Pool != "best" {
			t.Fatalf("replacement %+v, want one in pool best", r)
		}
		at("best", "i-2", interruption.SpotInterruption)
		if r := at("spot", "i-3", interruption.RebalanceRecommendation); r.Pool != "second" {
			t.Errorf("replacement %+v, want one in pool second: best was hit", r)
		}
		if r := at("spot", "i-4", interruption.SpotInterruption); r.Pool == "second" {
			t.Errorf("replacement %+v: on an interruption any will do", r)
		}
		time.Sleep(offerings.Lately)
		if r := at("spot", "i-5", interruption.RebalanceRecommendation); r.Pool != "best" {
			t.Errorf("replacement %+v, want one in pool best, which was hit long ago", r)
		}
		// A pool with no other to go to has no replacement.
		for _, name := range []string{"best", "second"} {
			if err := c.Tracker().Delete(nodePoolResource, "", name); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(poolTTL)
		if r := at("spot", "i-6", interruption.RebalanceRecommendation); r.State != provisioner.StateUnsupported || !strings.Contains(r.Reason, "spot is the one that the node is to leave") {
			t.Errorf("replacement %+v, want none", r)
		}
	})
}
