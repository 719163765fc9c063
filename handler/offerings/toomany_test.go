package offerings

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// A pool has lost too many of its spot nodes if these are three, and more than a quarter, within half an
// hour. The next leader knows it, and a metric shows it.
func TestTooMany(t *testing.T) {
	for name, tt := range map[string]struct {
		lost, standing int
		want           bool
	}{
		"a quarter":           {3, 9, false},
		"more than a quarter": {3, 8, true},
		"all":                 {3, 0, true},
		"only two":            {2, 0, false},
		"many of many more":   {40, 120, false},
		"many":                {40, 119, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				other := spotNode("m5.large", "a")
				other.Labels["karpenter.sh/nodepool"] = "other"
				standing := []*corev1.Node{other}
				for range 200 { // nodes of the same pool that are not spot
					for _, capacity := range []string{"on-demand", "reserved", ""} {
						another := spotNode("m5.large", "a")
						another.Labels["karpenter.sh/capacity-type"] = capacity
						standing = append(standing, another)
					}
					unlabelled := spotNode("m5.large", "a")
					delete(unlabelled.Labels, "karpenter.sh/capacity-type")
					standing = append(standing, unlabelled)
				}
				for range tt.standing {
					standing = append(standing, spotNode("c5.large", "b"))
				}
				api := newConfigMaps(nil)
				m, stop := keep(t, api, t.Output(), standing...)
				for i := range tt.lost {
					m.Note(named(fmt.Sprint("node-", i), spotNode("m5.large", fmt.Sprint("z", i%4))), record(interruption.SpotInterruption))
				}
				for i := range 9 {
					m.Note(named(fmt.Sprint("risky-", i), spotNode("m5.large", "z0")), record(interruption.RebalanceRecommendation))
				}
				m.Note(named("other", other), record(interruption.SpotInterruption))
				want, shown := map[string]Losses{}, map[string]float64{"": 0}
				if tt.want {
					want["spot"] = Losses{tt.lost, tt.standing}
					shown["spot"] = float64(tt.lost)
				}
				check := func(of *Memory) {
					t.Helper()
					if got := of.TooMany(); !maps.Equal(got, want) {
						t.Errorf("%v, want %v", got, want)
					}
				}
				check(m)
				interrupted := spotNode("m5.large", "a")
				metav1.SetMetaDataAnnotation(&interrupted.ObjectMeta, interruption.Annotation, record(interruption.SpotInterruption).String())
				if got := lostNodes(t, m); !maps.Equal(got, shown) {
					t.Errorf("the metric shows %v, want %v", got, shown)
				}
				time.Sleep(2 * pause)
				stop()
				next, stop := keep(t, api, t.Output(), standing...)
				check(next)
				nodes := append(slices.Clone(standing), interrupted)
				if len(standing) > 2 { // and it may stay
					recommended, waiting, rehearsed := record(interruption.RebalanceRecommendation), record(interruption.ScheduledEvent), record(interruption.SpotInterruption)
					recommended.Phase, waiting.Phase, rehearsed.Source = interruption.Draining, interruption.Waiting, interruption.Rehearsal
					for i, rec := range []interruption.Record{recommended, waiting, rehearsed} {
						node := nodes[2+i].DeepCopy()
						metav1.SetMetaDataAnnotation(&node.ObjectMeta, interruption.Annotation, rec.String())
						nodes[2+i] = node
					}
				}
				people, err := Read(t.Context(), api, nodes)
				if err != nil {
					t.Fatal(err)
				}
				check(people)
				time.Sleep(window - slot - 2*pause - time.Second)
				check(next)
				time.Sleep(slot + 2*pause)
				clear(want)
				check(next)
				stop()
			})
		})
	}
}

// lostNodes are the values of the memory's metric, by pool.
func lostNodes(t *testing.T, m *Memory) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.Collector())
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "spot_handler_lost_nodes" {
		t.Fatalf("metrics %v, %v", families, err)
	}
	found := map[string]float64{}
	for _, metric := range families[0].Metric {
		found[metric.Label[0].GetValue()] = metric.GetGauge().GetValue()
	}
	return found
}

// Those that are lost no longer stand.
func TestLossesInWords(t *testing.T) {
	if got, want := (Losses{Lost: 3, Standing: 8}).String(), "lost 3 of 11 spot nodes within 30 minutes"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
