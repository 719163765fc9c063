package karpenter

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/handler/offerings"
)

// An outlook says of a pool what a Backend would do for each of its nodes.
func TestOutlook(t *testing.T) {
	named := func(name string, change ...func(*unstructured.Unstructured)) *nodePool {
		return pool(t, append(change, func(u *unstructured.Unstructured) { u.SetName(name) })...)
	}
	source := func(fallback string) *nodePool {
		return named("batch", requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]}]`), func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{FallbackAnnotation: fallback})
		})
	}
	onDemandIn := func(more string) func(*unstructured.Unstructured) {
		return requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand"]}` + more + `]`)
	}
	cpu := func(limit string) func(*unstructured.Unstructured) { // 100 are in use
		return set(map[string]any{"cpu": limit}, "spec", "limits")
	}
	fleetOf := func(nodes map[offerings.Offering]int) fleet {
		f := fleet{used: map[string]corev1.ResourceList{}, spot: map[string]map[offerings.Offering]*spotNodes{}}
		for of, count := range nodes {
			for i := range count {
				claim := &Claim{}
				claim.Name = fmt.Sprint(of, i)
				claim.Labels = map[string]string{nodePoolLabel: "batch", capacityTypeLabel: spot, corev1.LabelInstanceTypeStable: of.Type, corev1.LabelTopologyZone: of.Zone}
				claim.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")}
				f.add(claim)
			}
		}
		return f
	}
	spread := fleetOf(map[offerings.Offering]int{{Type: "m5", Zone: "a"}: 3, {Type: "m6", Zone: "a"}: 2, {Type: "m5", Zone: "b"}: 3})
	most := offerings.Offering{Type: "m5", Zone: "a"}
	zones := map[string]int{"a": 5, "b": 3}
	const (
		by    = "annotation spot-handler/fallback-nodepool of NodePool batch"
		first = "/spec/template/spec/requirements/0/values/-"
	)
	expect := func(fallback string, change func(*Outlook)) Outlook {
		o := Outlook{Pool: "batch", Zones: zones, Named: fallback, By: by, Fallbacks: []string{fallback}, Largest: most, Sharing: 3, CapacityTypes: first}
		change(&o)
		return o
	}

	for name, tt := range map[string]struct {
		source *nodePool
		others []*nodePool
		fleet  fleet
		want   Outlook
	}{
		"all is well": {source("od"), []*nodePool{named("od", onDemandIn(""))}, spread, expect("od", func(*Outlook) {})},
		"no nodes yet": {source("od"), []*nodePool{named("od", onDemandIn(""), cpu("0"))}, fleetOf(nil), expect("od", func(o *Outlook) {
			o.Zones, o.Largest, o.Sharing = map[string]int{}, offerings.Offering{}, 0
		})},
		"missing": {source("gone"), []*nodePool{named("od", onDemandIn(""))}, spread, expect("gone", func(o *Outlook) {
			o.Fallbacks, o.Missing, o.Instead = nil, "NodePool gone, named by "+by+", does not exist", "od"
		})},
		"not ready": {source("od"), []*nodePool{named("od", set([]any{}, "status", "conditions"))}, spread, expect("od", func(o *Outlook) {
			o.Fallbacks, o.Refused = nil, "NodePool od, named by "+by+", is not Ready"
		})},
		"none suits": {source(""), []*nodePool{named("other", requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]}]`))}, spread, expect("", func(o *Outlook) {
			o.Fallbacks, o.By = nil, ""
			o.Missing = "no NodePool is named to replace nodes of pool batch, and none suits: batch has no on-demand instances; other has no on-demand instances"
		})},
		"the best first": {source(""), []*nodePool{named("low", onDemandIn(""), set(int64(1), "spec", "weight")), named("high", onDemandIn(""), set(int64(2), "spec", "weight"))}, spread, expect("", func(o *Outlook) {
			o.Fallbacks, o.By = []string{"high", "low"}, ""
		})},
		"spot only": {source("batch"), nil, spread, expect("batch", func(o *Outlook) { o.SpotOnly = true })},
		"another zone": {source("od"), []*nodePool{named("od", onDemandIn(`,{"key":"topology.kubernetes.io/zone","operator":"In","values":["b","c"]}`))}, spread, expect("od", func(o *Outlook) {
			o.Barred, o.ZoneValues = []string{"a"}, "/spec/template/spec/requirements/1/values/-"
		})},
		"zones of others": {named("batch", requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["spot"]},{"key":"topology.kubernetes.io/zone","operator":"In","values":["a","b"]}]`), func(u *unstructured.Unstructured) {
			u.SetAnnotations(map[string]string{FallbackAnnotation: "batch"})
		}), nil, func() fleet {
			f := fleetOf(map[offerings.Offering]int{{Type: "m5", Zone: "a"}: 3, {Type: "m6", Zone: "a"}: 2, {Type: "m5", Zone: "b"}: 3})
			f.spot["other"] = map[offerings.Offering]*spotNodes{{Type: "m5", Zone: "d"}: {}, {Type: "m6", Zone: "d"}: {}, {Type: "m5", Zone: "c"}: {}, {Type: "m5", Zone: "a"}: {}}
			return f
		}(), expect("batch", func(o *Outlook) {
			o.SpotOnly, o.Elsewhere = true, []string{"c", "d"}
			o.OwnZones, o.ZoneValues = "/spec/template/spec/requirements/1/values/-", "/spec/template/spec/requirements/1/values/-"
		})},
		"just enough": {source("od"), []*nodePool{named("od", onDemandIn(""), cpu("124"))}, spread, expect("od", func(*Outlook) {})},
		"one too many": {source("od"), []*nodePool{named("od", onDemandIn(""), cpu("123"))}, spread, expect("od", func(o *Outlook) {
			o.Unplaced, o.Full, o.Raise = 1, "limit of NodePool od leaves no room (cpu: 100 used, 24 asked for, limit 123)", corev1.ResourceList{"cpu": resource.MustParse("124")}
		})},
		"together they have room": {source(""), []*nodePool{named("a", onDemandIn(""), cpu("116")), named("b", onDemandIn(""), cpu("108"))}, spread, expect("", func(o *Outlook) {
			o.Fallbacks, o.By = []string{"a", "b"}, ""
		})},
		"not even together": {source(""), []*nodePool{named("a", onDemandIn(""), cpu("115")), named("b", onDemandIn(""), cpu("108"))}, spread, expect("", func(o *Outlook) {
			o.Fallbacks, o.By, o.Unplaced, o.Raise = []string{"a", "b"}, "", 1, corev1.ResourceList{"cpu": resource.MustParse("116")}
			o.Full = "limit of NodePool a leaves no room (cpu: 100 used, 16 asked for, limit 115); limit of NodePool b leaves no room (cpu: 100 used, 16 asked for, limit 108)"
		})},
	} {
		t.Run(name, func(t *testing.T) {
			got := outlook(tt.source, append([]*nodePool{tt.source}, tt.others...), tt.fleet, nil)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
