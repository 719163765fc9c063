package karpenter

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

// nodeAtRisk is a spot node of the offering m5.large in eu-west-1b, and its record.
func nodeAtRisk() (*corev1.Node, interruption.Record) {
	node, rec := interruptedNode(), record()
	node.Labels[corev1.LabelInstanceTypeStable] = "m5.large"
	rec.Kind, rec.Deadline = interruption.RebalanceRecommendation, time.Time{}
	return node, rec
}

// ordered is what the NodeClaim of that name requires of a label.
func (c *cluster) ordered(name, key string) provisioner.Constraint {
	c.t.Helper()
	u, err := c.Tracker().Get(nodeClaimResource, "", name)
	if err != nil {
		c.t.Fatal(err)
	}
	return constraintOn(key, decodeClaim(u.(*unstructured.Unstructured)).Spec.Requirements)
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
		"switched off": {opts: Options{Rebalance: interruption.RebalanceFallback}, pool: "fallback"},
		"switched off for the pool": {source: changes{func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{RebalanceAnnotation: "fallback"})
		}}, pool: "fallback"},
		"switched off but for the pool": {opts: Options{Rebalance: interruption.RebalanceFallback}, source: changes{func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{RebalanceAnnotation: "replace"})
		}}, pool: "spot", capacity: "spot", types: []string{"m6i.large", "c6i.large"}},
		"a notice": {change: func(r *interruption.Record, _ *corev1.Node, _ *provisioner.Need) { *r = record() }, pool: "fallback"},
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
			on := func(key string) provisioner.Constraint { return c.ordered(r.Name, key) }
			if types := on(corev1.LabelInstanceTypeStable); !slices.Equal(types.In, tt.types) {
				t.Errorf("types %+v, want %q", types, tt.types)
			}
			if zones := on(corev1.LabelTopologyZone); !slices.Equal(zones.NotIn, tt.zones) {
				t.Errorf("zones %+v, want all but %q", zones, tt.zones)
			}
			if !on(capacityTypeLabel).Allows("spot") || on(capacityTypeLabel).Allows("on-demand") {
				t.Errorf("capacity %+v, want spot alone", on(capacityTypeLabel))
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
		c.taken.Note(anotherInstance(node), rec)
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

		other, rec2 := nodeAtRisk()
		other.Labels[corev1.LabelInstanceTypeStable], rec2.Instance = "m6i.large", "i-2"
		r, err := c.p.Request(t.Context(), other, rec2, need())
		if err != nil {
			t.Fatal(err)
		}
		if types := c.ordered(r.Name, corev1.LabelInstanceTypeStable); !slices.Equal(types.In, []string{"c6i.large"}) {
			t.Errorf("types %+v, want the one that was not hit", types)
		}

		time.Sleep(launchTimeout + time.Second)
		if r := ask(); r.Pool != "spot" || r.Capacity != "" || r.Name == first.Name || r.Tried != "spot/spot" || !strings.Contains(r.Reason, "not launched") {
			t.Errorf("replacement %+v, want the fallback", r)
		}
	})
}

// On a notice, a named pool that has nothing but spot instances gives others than were lost lately,
// of whatever node; and any, if it has no others or launches none.
func TestNoticeLeavesOutWhatWasLostLately(t *testing.T) {
	oneType := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]},{"key":"node.kubernetes.io/instance-type","operator":"In","values":["m5.large"]}]`)
	oneOffering := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]},{"key":"node.kubernetes.io/instance-type","operator":"In","values":["m5.large"]},
		{"key":"topology.kubernetes.io/zone","operator":"In","values":["eu-west-1b"]}]`)
	all := []string{"m5.large", "m6i.large", "c6i.large"}
	for name, tt := range map[string]struct {
		pool  func(*unstructured.Unstructured)
		lost  [][2]string // type and zone, of other nodes
		later time.Duration

		types, notIn []string // of the first claim
		again        bool     // it gave up on others before
	}{
		"its own":                 {pool: spotOnly, types: all[1:], again: true},
		"others' too":             {pool: spotOnly, lost: [][2]string{{"m6i.large", "eu-west-1a"}}, types: all[2:], again: true},
		"others' of long ago":     {pool: spotOnly, lost: [][2]string{{"m6i.large", "eu-west-1a"}}, later: offerings.Lately, types: all[1:], again: true},
		"one type, other zones":   {pool: oneType, lost: [][2]string{{"m5.large", "eu-west-1a"}, {"c6i.large", "eu-west-1c"}}, types: all[:1], notIn: []string{"eu-west-1a", "eu-west-1b"}, again: true},
		"there is no other":       {pool: oneOffering, types: all[:1]},
		"on-demand is not taken":  {pool: requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot","on-demand"]}]`), types: all},
		"every type was lost but": {pool: spotOnly, lost: [][2]string{{"m6i.large", "eu-west-1a"}, {"c6i.large", "eu-west-1a"}, {"r5.large", "eu-west-1a"}}, types: all, notIn: []string{"eu-west-1a", "eu-west-1b"}, again: true},
	} {
		bubble(t, name, func(t *testing.T) {
			c := newCluster(t, Options{FallbackNodePools: map[string]string{"spot": "fallback"}}, plain(t, "fallback", 1, tt.pool), plain(t, "spot", 50, spotOnly), sourceNodeClaim())
			for _, o := range tt.lost {
				other, _ := nodeAtRisk()
				other.Labels[corev1.LabelInstanceTypeStable], other.Labels[corev1.LabelTopologyZone] = o[0], o[1]
				c.taken.Note(anotherInstance(other), record())
			}
			time.Sleep(tt.later)
			node, _ := nodeAtRisk()
			rec := record()
			first, err := c.p.Request(t.Context(), node, rec, need())
			if err != nil || first.Pool != "fallback" || (first.Capacity == spot) != tt.again {
				t.Fatalf("replacement %+v, %v", first, err)
			}
			if types, zones := c.ordered(first.Name, corev1.LabelInstanceTypeStable), c.ordered(first.Name, corev1.LabelTopologyZone); !slices.Equal(types.In, tt.types) || !slices.Equal(zones.NotIn, tt.notIn) {
				t.Errorf("types %+v, zones %+v; want %q, not in %q", types, zones, tt.types, tt.notIn)
			}
			if !tt.again {
				return
			}
			rec.Replacement = &first
			time.Sleep(launchTimeout + time.Second)
			second, err := c.p.Request(t.Context(), node, rec, need())
			if err != nil || second.Pool != "fallback" || second.Name == first.Name || second.Tried != "fallback/spot" || !provisioner.Pending(second.State) {
				t.Fatalf("replacement %+v, %v; want any of the pool", second, err)
			}
			want := all
			if tt.notIn != nil {
				want = tt.types
			}
			if types, zones := c.ordered(second.Name, corev1.LabelInstanceTypeStable), c.ordered(second.Name, corev1.LabelTopologyZone); !slices.Equal(types.In, want) || len(types.NotIn)+len(zones.NotIn) > 0 {
				t.Errorf("types %+v, zones %+v; want %q, and any zone", types, zones, want)
			}
		})
	}
}

// What launches no spot instance for one node at risk is not asked again for the next, as that would halt
// Karpenter each time, unless all else fails. A while later it is.
func TestSpotPoolInVain(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := newCluster(t, Options{FallbackNodePools: map[string]string{"spot": "fallback"}}, plain(t, "spot", 50, spotOnly), plain(t, "fallback", 1), sourceNodeClaim())
		n := 0
		// ask has a node at risk ask until it has asked in so many pools, which all launch nothing.
		ask := func(asks int) (tried []string) {
			t.Helper()
			node, rec := nodeAtRisk()
			n++
			rec.Instance = fmt.Sprint("i-", n)
			for range asks {
				r, err := c.p.Request(t.Context(), node, rec, need())
				if err != nil || !provisioner.Pending(r.State) {
					t.Fatalf("replacement %+v, %v", r, err)
				}
				tried, rec.Replacement = append(tried, triedAs(r.Pool, r.Capacity)), &r
				time.Sleep(launchTimeout + time.Second)
			}
			return tried
		}
		for i, want := range [][]string{{"spot/spot", "fallback"}, {"fallback", "spot/spot"}, {"fallback"}} {
			if got := ask(len(want)); !slices.Equal(got, want) {
				t.Errorf("node %d asks in %q, want %q", i, got, want)
			}
		}
		time.Sleep(offerings.Lately)
		if got := ask(1); got[0] != "spot/spot" {
			t.Errorf("a while later a node asks in %q first, want another spot instance", got)
		}
	})
}

// Where few types are left, zones are left out instead: where the node's claim names no other that suits
// a pool without a list, and where the pool demands more than would be left.
func TestZonesAreLeftOutWhereTypesAreFew(t *testing.T) {
	onSpot := func(more string) func(*unstructured.Unstructured) {
		return requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]}` + more + `]`)
	}
	const gpu = `,{"key":"karpenter.k8s.aws/instance-gpu-name","operator":"In","values":["a100"]}`
	const zone = `,{"key":"topology.kubernetes.io/zone","operator":"In","values":["eu-west-1b"]}`
	atLeast := func(n string) string {
		return `,{"key":"node.kubernetes.io/instance-type","operator":"In","values":["m5.large","m6i.large","c6i.large"],"minValues":` + n + `}`
	}
	mine, three := []string{"m5.large"}, []string{"m5.large", "m6i.large", "c6i.large"}
	for name, tt := range map[string]struct {
		pool  func(*unstructured.Unstructured)
		claim []any       // the types that the node's own names
		lost  [][2]string // of other nodes: type and zone

		types, notTypes, notZones []string // of the claim
		none                      bool     // there is no other spot instance
	}{
		"another type":                 {pool: onSpot(gpu), claim: []any{"m5.large", "p4d.24xlarge"}, types: []string{"p4d.24xlarge"}},
		"one type":                     {pool: onSpot(gpu), claim: []any{"m5.large"}, types: mine, notZones: []string{"eu-west-1b"}},
		"zones of other types":         {pool: onSpot(gpu), claim: []any{"m5.large"}, lost: [][2]string{{"r5.large", "eu-west-1c"}}, types: mine, notZones: []string{"eu-west-1b"}},
		"one type in one zone":         {pool: onSpot(gpu + zone), claim: []any{"m5.large"}, notTypes: mine},
		"the claim is of other types":  {pool: onSpot(atLeast("1")), claim: []any{"r5.large"}, types: three, notTypes: mine},
		"two of three are demanded":    {pool: onSpot(atLeast("2")), claim: []any{"m5.large", "m6i.large", "c6i.large"}, types: three, notTypes: mine},
		"all three are demanded":       {pool: onSpot(atLeast("3")), claim: []any{"m5.large", "m6i.large", "c6i.large"}, types: three, notZones: []string{"eu-west-1b"}},
		"all are demanded in one zone": {pool: onSpot(atLeast("3") + zone), claim: []any{"m5.large", "m6i.large", "c6i.large"}, none: true},
	} {
		for kind, recommended := range map[string]bool{"recommended": true, "noticed": false} {
			bubble(t, name+", "+kind, func(t *testing.T) {
				claim, pool := sourceNodeClaim(), "spot"
				set([]any{
					map[string]any{"key": corev1.LabelInstanceTypeStable, "operator": "In", "values": tt.claim},
					map[string]any{"key": "karpenter.k8s.aws/instance-gpu-name", "operator": "In", "values": []any{"a100"}},
				}, "spec", "requirements")(claim)
				node, rec := nodeAtRisk()
				source, fallback := plain(t, "spot", 50, tt.pool), plain(t, "fallback", 1)
				if !recommended {
					rec, pool = record(), "fallback"
					source, fallback = plain(t, "spot", 50, spotOnly), plain(t, "fallback", 1, tt.pool)
				}
				c := newCluster(t, Options{FallbackNodePools: map[string]string{"spot": "fallback"}}, source, fallback, claim)
				for _, o := range tt.lost {
					other, _ := nodeAtRisk()
					other.Labels[corev1.LabelInstanceTypeStable], other.Labels[corev1.LabelTopologyZone] = o[0], o[1]
					c.taken.Note(anotherInstance(other), record())
				}
				r, err := c.p.Request(t.Context(), node, rec, need())
				if tt.none {
					if err != nil || r.Pool != "fallback" || r.Capacity != "" {
						t.Errorf("replacement %+v, %v; want the fallback", r, err)
					}
					return
				}
				if err != nil || r.Pool != pool || r.Capacity != spot {
					t.Fatalf("replacement %+v, %v; want a spot instance of pool %s", r, err, pool)
				}
				types, zones := c.ordered(r.Name, corev1.LabelInstanceTypeStable), c.ordered(r.Name, corev1.LabelTopologyZone)
				if !slices.Equal(types.In, tt.types) || !slices.Equal(types.NotIn, tt.notTypes) || !slices.Equal(zones.NotIn, tt.notZones) {
					t.Errorf("types %+v, zones %+v; want types %q, not types %q and not zones %q", types, zones, tt.types, tt.notTypes, tt.notZones)
				}
			})
		}
	}
}

// Only a spot instance that was asked for can have been asked for in vain.
func TestFallbackIsNotAskedInVain(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		c := newCluster(t, Options{FallbackNodePools: map[string]string{"spot": "fallback"}}, plain(t, "spot", 50, spotOnly), plain(t, "fallback", 1), sourceNodeClaim())
		node, rec := nodeAtRisk()
		for _, want := range []string{"spot/spot", "fallback"} {
			r, err := c.p.Request(t.Context(), node, rec, need())
			if err != nil || triedAs(r.Pool, r.Capacity) != want {
				t.Fatalf("replacement %+v, %v; want %s", r, err, want)
			}
			rec.Replacement = &r
			time.Sleep(launchTimeout + time.Second)
		}
		if r, err := c.p.Request(t.Context(), node, rec, need()); err != nil || provisioner.Pending(r.State) {
			t.Fatalf("replacement %+v, %v; want that of the fallback to have failed too", r, err)
		}
		if _, inVain := c.b.inVain.Last("spot/spot"); !inVain {
			t.Error("the spot pool gave none, and isn't remembered for that")
		}
		if _, inVain := c.b.inVain.Last("fallback/spot"); inVain {
			t.Error("the fallback was never asked for a spot instance, and is remembered for giving none")
		}
	})
}
