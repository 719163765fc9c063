package handler

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// gauges gathers one metric: its values by the values of its labels, without those that are
// zero, and how many series there are including those.
func gauges(t *testing.T, c prometheus.Collector, name string) (values map[string]float64, series int) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values = map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			series++
			key := ""
			for _, l := range m.GetLabel() {
				key += l.GetValue() + " "
			}
			if v := m.GetGauge().GetValue(); v != 0 {
				values[key[:len(key)-1]] = v
			}
		}
	}
	return values, series
}

func TestActiveInterruptions(t *testing.T) {
	soon, later := time.Unix(1_000_000, 0), time.Unix(2_000_000, 0)
	const spot, rebalance = string(interruption.SpotInterruption), string(interruption.RebalanceRecommendation)
	batchA, batchB := home{"batch", "a"}, home{"batch", "b"}
	nodes := []activeNode{
		{spot, interruption.Draining, later, time.Unix(900_000, 0), batchA, "ready"},
		{spot, interruption.Draining, soon, time.Unix(800_000, 0), batchA, "ready"},
		{spot, interruption.Replacing, later, time.Unix(900_000, 0), batchB, "requested"},
		{spot, interruption.Drained, time.Unix(1, 0), time.Time{}, batchA, "ready"}, // over: only its phase counts
		{rebalance, interruption.Noticed, time.Time{}, time.Time{}, home{}, noReplacement},
		{rebalance, interruption.Waiting, time.Time{}, time.Unix(700_000, 0), home{}, "requested"},
	}
	c := newActive(func() []activeNode { return nodes })
	for name, want := range map[string]map[string]float64{
		"spot_handler_active_interruptions": {
			"spot-interruption Draining": 2, "spot-interruption Replacing": 1, "spot-interruption Drained": 1,
			"rebalance-recommendation Noticed": 1, "rebalance-recommendation Waiting": 1,
		},
		"spot_handler_interrupted_nodes": { // kind, pool, replacement, zone
			"spot-interruption batch ready a": 2, "spot-interruption batch requested b": 1,
			"rebalance-recommendation  none ": 1,
		},
		"spot_handler_nearest_deadline_timestamp_seconds": {"spot-interruption": 1_000_000},
		"spot_handler_oldest_drain_timestamp_seconds":     {"spot-interruption": 800_000, "rebalance-recommendation": 700_000},
	} {
		got, _ := gauges(t, c, name)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// What is released, or of a kind that only a newer version knows, is not under way, and hides nothing
// that is.
func TestActiveOfWhatIsRemembered(t *testing.T) {
	story(t, func(t *testing.T, _ *script, _ *fakeNodes, h *Handler) {
		deadline := time.Unix(1_000_000, 0)
		remember := func(name string, kind interruption.Kind, phase interruption.Phase) {
			h.memory.get(name).rec = interruption.Record{Kind: kind, Phase: phase, Deadline: deadline, Instance: "i-" + name}
		}
		for i := range 10 {
			remember(fmt.Sprint("released-", i), interruption.SpotInterruption, interruption.Released)
			remember(fmt.Sprint("new-", i), "meteorite", interruption.Draining)
			h.memory.get(fmt.Sprint("nothing-yet-", i))
		}
		for i := range 3 {
			remember(fmt.Sprint("draining-", i), interruption.SpotInterruption, interruption.Draining)
		}
		for name, want := range map[string]map[string]float64{
			"spot_handler_active_interruptions":               {"spot-interruption Draining": 3},
			"spot_handler_interrupted_nodes":                  {"spot-interruption  none ": 3},
			"spot_handler_nearest_deadline_timestamp_seconds": {"spot-interruption": 1_000_000},
		} {
			got, _ := gauges(t, newActive(h.active), name)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

// Whatever names pools and zones, the number of series is bounded, and no node is missing from
// their sum.
func TestPoolsAndZonesAreBounded(t *testing.T) {
	var nodes []activeNode
	for i := range 5000 {
		nodes = append(nodes, activeNode{string(interruption.SpotInterruption), interruption.Draining, time.Time{}, time.Time{},
			home{fmt.Sprint("pool-", i), fmt.Sprint("zone-", i%7)}, "requested"})
	}
	large := home{"large", "a"} // kept, as it has two
	nodes = append(nodes, activeNode{string(interruption.SpotInterruption), interruption.Draining, time.Time{}, time.Time{}, large, "ready"},
		activeNode{string(interruption.SpotInterruption), interruption.Draining, time.Time{}, time.Time{}, large, "ready"})
	got, series := gauges(t, newActive(func() []activeNode { return nodes }), "spot_handler_interrupted_nodes")
	if most := maxHomes + 1 + len(counted()); series > most {
		t.Errorf("%d series, want %d at most", series, most)
	}
	sum := 0.0
	for _, n := range got {
		sum += n
	}
	if sum != float64(len(nodes)) || got["spot-interruption other requested other"] != 5000-maxHomes+1 || got["spot-interruption large ready a"] != 2 {
		t.Errorf("%v nodes in all, %v of other pools, want %d and %d",
			sum, got["spot-interruption other requested other"], len(nodes), 5000-maxHomes+1)
	}
	nodes = nil
	if got, series := gauges(t, newActive(func() []activeNode { return nodes }), "spot_handler_interrupted_nodes"); len(got) != 0 || series != len(counted()) {
		t.Errorf("when all is over: %d series, %v, want an empty one for each kind", series, got)
	}
}

// Nodes that name no pool are shown anyway, and take nobody's place.
func TestNodesWithoutAPoolTakeNoPlace(t *testing.T) {
	var nodes []activeNode
	for i := range maxHomes {
		nodes = append(nodes, activeNode{home: home{fmt.Sprint("pool-", i), "a"}}, activeNode{}, activeNode{})
	}
	shown := largestHomes(nodes)
	for _, n := range nodes {
		if !shown[n.home] {
			t.Errorf("%v is not shown among %d", n.home, len(shown))
		}
	}
}

func TestActiveReadsWhatIsKnown(t *testing.T) {
	node := testNode(func(n *corev1.Node) {
		n.Labels = map[string]string{"eks.amazonaws.com/nodegroup": "workers", corev1.LabelTopologyZone: "eu-west-1a"}
	})
	f := newFakeNodes(node)
	h := newTestHandler(t, f, nil)
	deadline, received := time.Unix(3_000_000, 0), time.Unix(2_900_000, 0)
	rec := interruption.Record{Kind: interruption.SpotInterruption, Phase: interruption.Replacing, Deadline: deadline, Received: received,
		Replacement: &interruption.Replacement{State: provisioner.StateRequested}}
	h.memory.get(node.Name).rec = rec
	h.memory.get("gone").rec = interruption.Record{Kind: interruption.SpotInterruption, Phase: interruption.Released}
	h.memory.get("newer").rec = interruption.Record{Kind: "of a newer version", Phase: interruption.Draining}

	want := []activeNode{{string(interruption.SpotInterruption), interruption.Replacing, deadline, received, home{"workers", "eu-west-1a"}, "requested"}}
	compare := cmp.AllowUnexported(activeNode{}, home{})
	if diff := cmp.Diff(want, h.active(), compare); diff != "" {
		t.Errorf("after a restart, from the record (-want +got):\n%s", diff)
	}
	k := h.memory.get(node.Name)
	k.replacement = &interruption.Replacement{State: provisioner.StateReady}
	want[0].replacement = "ready"
	if diff := cmp.Diff(want, h.active(), compare); diff != "" {
		t.Errorf("what the provisioner said last is newer than the record (-want +got):\n%s", diff)
	}
}

func TestHomeOf(t *testing.T) {
	for _, tt := range []struct {
		labels map[string]string
		want   home
	}{
		{nil, home{}},
		{map[string]string{"karpenter.sh/nodepool": "batch", "eks.amazonaws.com/nodegroup": "workers", corev1.LabelTopologyZone: "a"}, home{"batch", "a"}},
		{map[string]string{"alpha.eksctl.io/nodegroup-name": "workers"}, home{pool: "workers"}},
	} {
		if got := homeOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: tt.labels}}); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.labels, got, tt.want)
		}
	}
}
