package karpenter

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// Weigh names the pool first that Request then asks, and says of every other pool why not.
func TestWeigh(t *testing.T) {
	full := set(map[string]any{"cpu": "100"}, "spec", "limits")
	inA := requires(`[{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand"]},{"key":"topology.kubernetes.io/zone","operator":"In","values":["a"]}]`)
	for name, tt := range map[string]struct {
		opts   Options
		kind   interruption.Kind
		pools  func(*testing.T) []runtime.Object
		moving []*corev1.Pod
		want   []Weighed
	}{
		"by weight, and why the others are none": {
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{plain(t, "a-low", 1), plain(t, "b-high", 20), plain(t, "c-full", 30, full), plain(t, "d-spot", 40, spotOnly)}
			},
			want: []Weighed{
				{Pool: "b-high", Better: "has a higher weight"},
				{Pool: "a-low"},
				{Pool: "d-spot", Against: "has no on-demand instances"},
				{Pool: "spot", Against: "has no on-demand instances"},
				{Pool: "c-full", Against: "limit of NodePool c-full leaves no room (cpu: 100 used, 1 asked for, limit 100)"},
			},
		},
		"by pods": {
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{plain(t, "half", 40, inA), plain(t, "whole", 1)}
			},
			moving: []*corev1.Pod{pod(container("1", "")), selects(corev1.LabelTopologyZone, "b")},
			want: []Weighed{
				{Pool: "whole", Better: "takes more of the pods"},
				{Pool: "half", Without: []Misfit{{"needs topology.kubernetes.io/zone=b", []string{"default/web"}}}},
				{Pool: "spot", Against: "has no on-demand instances"},
			},
		},
		"takes none": {
			pools:  func(t *testing.T) []runtime.Object { return []runtime.Object{plain(t, "other", 1, inA)} },
			moving: []*corev1.Pod{selects(corev1.LabelTopologyZone, "b")},
			want: []Weighed{
				{Pool: "spot", Against: "has no on-demand instances"},
				{Pool: "other", Against: "takes none of the pods", Without: []Misfit{{"needs topology.kubernetes.io/zone=b", []string{"default/web"}}}},
			},
		},
		"named": {
			opts:  Options{FallbackNodePools: map[string]string{"spot": "a"}},
			pools: func(t *testing.T) []runtime.Object { return []runtime.Object{plain(t, "a", 1), plain(t, "b", 20)} },
			want:  []Weighed{{Pool: "a", Named: "--fallback-nodepool"}},
		},
		"named, and there is none": {
			opts:  Options{FallbackNodePools: map[string]string{"spot": "gone"}},
			pools: func(t *testing.T) []runtime.Object { return []runtime.Object{plain(t, "b", 20)} },
			want:  []Weighed{{Pool: "gone", Named: "--fallback-nodepool", Against: "NodePool gone, named by --fallback-nodepool, does not exist"}},
		},
		"at risk: another spot instance first": {
			kind: interruption.RebalanceRecommendation,
			pools: func(t *testing.T) []runtime.Object {
				return []runtime.Object{plain(t, "fallback", 1)}
			},
			want: []Weighed{
				{Pool: "spot", Capacity: "spot", Better: "can give another spot instance"},
				{Pool: "fallback"},
				{Pool: "spot", Against: "is the one that the node is to leave"},
			},
		},
	} {
		bubble(t, name, func(t *testing.T) {
			c := automatic(t, tt.opts, tt.pools(t)...)
			time.Sleep(2 * time.Second)
			node, rec, n := interruptedNode(), record(), provisioner.Need{Moving: tt.moving}
			if tt.kind != "" {
				rec.Kind, rec.Deadline = tt.kind, time.Time{}
				node.Labels[corev1.LabelInstanceTypeStable], node.Labels[corev1.LabelTopologyZone] = "m7i.large", "a"
			}
			if n.Moving == nil {
				n.Moving = []*corev1.Pod{pod(container("1", ""))}
			}
			got, err := c.b.Weigh(t.Context(), node, rec, n)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Weighed{}, "Inherited"), cmpopts.IgnoreUnexported(Weighed{})); diff != "" {
				t.Errorf("weighed (-want +got):\n%s", diff)
			}
			r, err := c.p.Request(t.Context(), node, rec, n)
			if err != nil {
				t.Fatal(err)
			}
			if asked := r.State == provisioner.StateRequested; asked != (got[0].Against == "") || asked && (r.Pool != got[0].Pool || r.Capacity != got[0].Capacity) {
				t.Errorf("Request answers %+v", r)
			}
		})
	}
}
