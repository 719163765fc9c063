package karpenter

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// nodeAtRisk is a spot node of the offering m5.large in eu-west-1b, and its record.
func nodeAtRisk() (*corev1.Node, interruption.Record) {
	node, rec := interruptedNode(), record()
	node.Labels[corev1.LabelInstanceTypeStable] = "m5.large"
	rec.Kind, rec.Deadline = interruption.RebalanceRecommendation, nil
	return node, rec
}

// A recommendation is answered by another spot instance where there is one, and by the fallback
// where there is none.
func TestAnotherSpotInstanceComesFirst(t *testing.T) {
	named := func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{FallbackAnnotation: "fallback"})
	}
	both := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot","on-demand"]}]`)
	oneType := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]},{"key":"node.kubernetes.io/instance-type","operator":"In","values":["m5.large"]}]`)
	oneOffering := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]},{"key":"node.kubernetes.io/instance-type","operator":"In","values":["m5.large"]},
		{"key":"topology.kubernetes.io/zone","operator":"In","values":["eu-west-1b"]}]`)
	type changes = []func(*unstructured.Unstructured)
	for name, tt := range map[string]struct {
		opts   Options
		source changes // of the pool spot, weight 50
		pools  func(*testing.T) []runtime.Object
		change func(*interruption.Record, *corev1.Node, *provisioner.Need)

		pool, capacity string
		types, zones   []string // that the claim excludes, or else the types that it names
	}{
		"own pool":     {pool: "spot", capacity: "spot", types: []string{"m6i.large", "c6i.large"}},
		"switched off": {opts: Options{RebalanceCapacity: Fallback}, pool: "fallback"},
		"a notice":     {change: func(r *interruption.Record, _ *corev1.Node, _ *provisioner.Need) { *r = record() }, pool: "fallback"},
		"offering is not known": {change: func(_ *interruption.Record, n *corev1.Node, _ *provisioner.Need) {
			delete(n.Labels, corev1.LabelInstanceTypeStable)
		}, pool: "fallback"},
		"one type, other zones":   {source: changes{oneType}, pool: "spot", capacity: "spot", types: []string{"m5.large"}, zones: []string{"eu-west-1b"}},
		"nothing but what's hit":  {source: changes{oneOffering}, pool: "fallback"},
		"own pool is not Ready":   {source: changes{set([]any{}, "status", "conditions")}, pool: "fallback"},
		"named fallback has spot": {source: changes{named, oneOffering}, pools: func(t *testing.T) []runtime.Object { return []runtime.Object{plain(t, "fallback", 1, both)} }, pool: "fallback", capacity: "spot", types: []string{"m6i.large", "c6i.large"}},
		"another's spot where none is named": {source: changes{oneOffering},
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{plain(t, "fallback", 1), plain(t, "other", 1, spotOnly)}
			},
			pool: "other", capacity: "spot", types: []string{"m6i.large", "c6i.large"}},
		"not another's where one is named": {source: changes{named, oneOffering},
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{plain(t, "fallback", 1), plain(t, "other", 1, spotOnly)}
			},
			pool: "fallback"},
		"own pool before others": {pools: func(t *testing.T) []runtime.Object {
			return []runtime.Object{plain(t, "fallback", 1), plain(t, "a-better", 90, spotOnly)}
		}, pool: "spot", capacity: "spot", types: []string{"m6i.large", "c6i.large"}},
		"a volume in the zone": {source: changes{oneType}, change: func(_ *interruption.Record, _ *corev1.Node, n *provisioner.Need) {
			for _, p := range n.Moving {
				p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}}
			}
		}, pool: "fallback"},
	} {
		bubble(t, name, func(t *testing.T) {
			objects := []runtime.Object{plain(t, "fallback", 1)}
			if tt.pools != nil {
				objects = tt.pools(t)
			}
			source := append([]func(*unstructured.Unstructured){spotOnly, func(u *unstructured.Unstructured) { u.SetAnnotations(nil) }}, tt.source...)
			c := newCluster(t, tt.opts, append(objects, plain(t, "spot", 50, source...), sourceNodeClaim())...)
			node, rec := nodeAtRisk()
			n := need()
			if tt.change != nil {
				tt.change(&rec, node, &n)
			}
			r, err := c.p.Request(t.Context(), node, rec, n)
			if err != nil || r.State != provisioner.StateRequested || r.Pool != tt.pool || r.Capacity != tt.capacity {
				t.Fatalf("Request: %+v, %v; want pool %q, capacity %q", r, err, tt.pool, tt.capacity)
			}
			if tt.capacity == "" {
				return
			}
			u, err := c.Tracker().Get(nodeClaimResource, "", r.Name)
			if err != nil {
				t.Fatal(err)
			}
			claim, err := decodeClaim(u.(*unstructured.Unstructured))
			if err != nil {
				t.Fatal(err)
			}
			on := func(key string) constraint { return constraintOn(key, claim.Spec.Requirements) }
			if types := on(corev1.LabelInstanceTypeStable); !slices.Equal(types.in, tt.types) {
				t.Errorf("types %+v, want %q", types, tt.types)
			}
			if zones := on(corev1.LabelTopologyZone); !slices.Equal(zones.notIn, tt.zones) {
				t.Errorf("zones %+v, want all but %q", zones, tt.zones)
			}
			if !on(capacityTypeLabel).allows("spot") || on(capacityTypeLabel).allows("on-demand") {
				t.Errorf("requirements %+v, want spot alone", claim.Spec.Requirements)
			}
		})
	}
}

// If no other spot instance is launched, the fallback is asked, even if that is the same pool.
// Types that were hit lately are avoided too.
func TestAfterAnotherSpotInstanceThereIsTheFallback(t *testing.T) {
	both := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot","on-demand"]}]`)
	bubble(t, "", func(t *testing.T) {
		c := newCluster(t, Options{FallbackNodePools: map[string]string{"spot": "spot"}}, plain(t, "spot", 50, both), sourceNodeClaim())
		node, rec := nodeAtRisk()
		ask := func() interruption.Replacement {
			t.Helper()
			r, err := c.p.Request(t.Context(), node, rec, need())
			if err != nil {
				t.Fatal(err)
			}
			rec.Replacement = &r
			return r
		}
		first := ask()
		if first.Pool != "spot" || first.Capacity != "spot" || first.Name != "spot-"+instance+"-spot" {
			t.Fatalf("replacement %+v, want another spot instance", first)
		}
		time.Sleep(launchTimeout + time.Second)
		if r := ask(); r.Pool != "spot" || r.Capacity != "" || r.Name == first.Name || r.Tried != "spot/spot" || !strings.Contains(r.Reason, "not launched") {
			t.Errorf("replacement %+v, want the fallback", r)
		}

		other, rec2 := nodeAtRisk()
		other.Labels[corev1.LabelInstanceTypeStable], rec2.Instance = "m6i.large", "i-2"
		r, err := c.p.Request(t.Context(), other, rec2, need())
		if err != nil {
			t.Fatal(err)
		}
		u, err := c.Tracker().Get(nodeClaimResource, "", r.Name)
		if err != nil {
			t.Fatal(err)
		}
		claim, err := decodeClaim(u.(*unstructured.Unstructured))
		if err != nil {
			t.Fatal(err)
		}
		if types := constraintOn(corev1.LabelInstanceTypeStable, claim.Spec.Requirements); !slices.Equal(types.in, []string{"c6i.large"}) {
			t.Errorf("types %+v, want the one that was not hit", types)
		}
	})
}
