package karpenter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

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
	s := replacedNode{node: interruptedNode(), rec: record(), source: source, need: provisioner.Need{Moving: []*corev1.Pod{p, q}}}
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
			got := replacedNode{rec: rec}.protectedUntil(candidate{pool: pool(t, set(tt.after, "spec", "disruption", "consolidateAfter"))})
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
		c := newCluster(t, Options{Rebalance: interruption.RebalanceFallback}, spot, plain(t, "best", 80, mixed), plain(t, "second", 10), sourceNodeClaim())
		at := func(pool, instance string, kind interruption.Kind) interruption.Replacement {
			node, rec := interruptedNode(), record()
			node.Labels[nodePoolLabel], rec.Instance, rec.Kind = pool, instance, kind
			if kind == interruption.RebalanceRecommendation {
				rec.Deadline = time.Time{}
			}
			node.Labels[corev1.LabelInstanceTypeStable] = "m5.large"
			c.taken.Note(anotherInstance(node), rec)
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

// A pool that has lost too many of its nodes is not asked for a spot instance on a recommendation, as
// long as there is anything else. On an interruption any pool will do, and half an hour later too.
func TestPoolsThatLoseManyNodesComeLast(t *testing.T) {
	for name, tt := range map[string]struct {
		fallback string
		pools    []runtime.Object
		standing int
		kind     interruption.Kind
		later    time.Duration
		want     [2]string // pool and capacity
		why      bool      // says so
	}{
		"the fallback instead":     {"od", []runtime.Object{plain(t, "od", 1)}, 0, interruption.RebalanceRecommendation, 0, [2]string{"od", ""}, true},
		"not so many":              {"od", []runtime.Object{plain(t, "od", 1)}, 9, interruption.RebalanceRecommendation, 0, [2]string{"spot", "spot"}, false},
		"calm again":               {"od", []runtime.Object{plain(t, "od", 1)}, 0, interruption.RebalanceRecommendation, 31 * time.Minute, [2]string{"spot", "spot"}, false},
		"another spot pool":        {"", []runtime.Object{plain(t, "best", 60, spotOnly)}, 0, interruption.RebalanceRecommendation, 0, [2]string{"best", "spot"}, true},
		"there is nothing else":    {"", nil, 0, interruption.RebalanceRecommendation, 0, [2]string{"spot", "spot"}, true},
		"the fallback gives spot":  {"spot", nil, 0, interruption.RebalanceRecommendation, 0, [2]string{"spot", "spot"}, true},
		"the fallback has no room": {"od", []runtime.Object{plain(t, "od", 1, set(map[string]any{"cpu": "1"}, "spec", "limits"))}, 0, interruption.RebalanceRecommendation, 0, [2]string{"spot", "spot"}, true},
		"on a notice":              {"spot", nil, 0, interruption.SpotInterruption, 0, [2]string{"spot", "spot"}, false},
	} {
		bubble(t, name, func(t *testing.T) {
			objects := append([]runtime.Object{plain(t, "spot", 50, spotOnly), sourceNodeClaim()}, tt.pools...)
			opts := Options{}
			if tt.fallback != "" {
				opts.FallbackNodePools = map[string]string{"spot": tt.fallback}
			}
			c := newCluster(t, opts, objects...)
			node, rec := nodeAtRisk()
			var standing []*corev1.Node
			for range tt.standing {
				standing = append(standing, node)
			}
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				done <- c.taken.Keep(ctx, noConfigMaps{}, func() []*corev1.Node { return standing }, zerolog.Nop())
			}()
			synctest.Wait()
			for i := range 3 {
				lost := node.DeepCopy()
				lost.Name = fmt.Sprint("lost-", i)
				lost.Labels[corev1.LabelInstanceTypeStable], lost.Labels[corev1.LabelTopologyZone] = "r5.large", "eu-west-1c"
				c.taken.Note(anotherInstance(lost), record())
			}
			time.Sleep(tt.later)
			if tt.kind == interruption.SpotInterruption {
				rec = record()
			}
			r, err := c.p.Request(t.Context(), node, rec, need())
			if got := [2]string{r.Pool, r.Capacity}; got != tt.want || err != nil {
				t.Errorf("replacement %+v, %v, want %q", r, err, tt.want)
			}
			if says := strings.Contains(r.Reason, "pool spot has lost 3 of 3 spot nodes within 30 minutes"); says != tt.why {
				t.Errorf("reason %q, want one of losses: %t", r.Reason, tt.why)
			}
			stop()
			<-done
		})
	}
}
