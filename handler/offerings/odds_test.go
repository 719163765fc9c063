package offerings

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// metric is what the memory's metric of that name has, by the values of its labels.
func (m *Memory) metric(t *testing.T, name string) map[string]*dto.Metric {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.Collector())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*dto.Metric{}
	for _, family := range families {
		for _, metric := range family.Metric {
			key := ""
			for _, label := range metric.Label {
				key += "/" + label.GetValue()
			}
			if family.GetName() == name {
				found[key] = metric
			}
		}
	}
	return found
}

// Of 20 nodes of an offering that loses one an hour for each, as long as anybody remembers, two are lost
// every five minutes, each five minutes old; no loss has ever made another one more likely. An on-demand node has no odds.
func TestOddsAreScored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var standing []*corev1.Node
		for range 20 {
			standing = append(standing, spotNode("m5.large", "a"))
		}
		onDemand := spotNode("m5.large", "a")
		onDemand.Labels["karpenter.sh/capacity-type"] = "on-demand"
		m, stop := keep(t, newConfigMaps(map[string]string{dataKey: fmt.Sprintf(
			`{"at":%q,"offerings":[{"type":"m5.large","zone":"a","pool":"spot","lost":1e8,"hours":1e8,"risk":1e9}]}`, time.Now().Format(time.RFC3339))}), t.Output(), append(standing, onDemand)...)
		for round := range 12 {
			created := metav1.NewTime(time.Now().Add(-time.Second))
			time.Sleep(time.Minute)
			for i := range 2 {
				node := named(fmt.Sprint("node-", round, "-", i), spotNode("m5.large", "a"))
				node.CreationTimestamp = created
				m.Note(node, record(interruption.SpotInterruption))
				m.Note(node, record(interruption.SpotInterruption)) // its Node is visited again
				recommended := named(node.Name+"-too", spotNode("m5.large", "a"))
				m.Note(recommended, record(interruption.RebalanceRecommendation))
			}
			time.Sleep(4 * time.Minute)
			synctest.Wait()
		}
		for within, tt := range map[string]struct {
			odds   float64
			trials int // of which each has two lost: others were made after it began
		}{"5m": {1 - math.Exp(-1.0/12), 12}, "30m": {1 - math.Exp(-0.5), 2}} {
			got := m.metric(t, "spot_handler_loss_odds_squared_error")["/"+within].GetSummary()
			want := float64(tt.trials) * (2*(1-tt.odds)*(1-tt.odds) + 18*tt.odds*tt.odds)
			if n := tt.trials * 20; got.GetSampleCount() != uint64(n) || math.Abs(got.GetSampleSum()-want) > 1e-3 {
				t.Errorf("within %s: %v, want %d nodes and %.4f in all", within, got, n, want)
			}
			odds := m.metric(t, "spot_handler_loss_odds")
			spot, none := odds["/spot/"+within].GetGauge().GetValue(), odds["//"+within].GetGauge().GetValue()
			if len(odds) != 4 || math.Abs(spot-tt.odds) > 1e-4 || none <= 0 || none > 0.01 {
				t.Errorf("within %s: odds %v, want %.4f of pool spot, and those without a history", within, odds, tt.odds)
			}
		}
		stop()
	})
}

// The odds of a pool are the mean of its nodes', and those of no more pools are shown than have a place.
func TestOddsOfPools(t *testing.T) {
	m, standing := New(), []*corev1.Node{spotNode("m5.large", "a"), spotNode("m5.large", "a"), spotNode("m5.large", "b")}
	known := Rate{Lost: 9.8, Hours: 80}
	*m.tally(Loss{Offering{"m5.large", "a"}, "spot"}) = tally{Rate: known}
	m.judge(standing)
	got, want := m.metric(t, "spot_handler_loss_odds")["/spot/30m"].GetGauge().GetValue(), (2*known.Odds(Assumed, 30*time.Minute)+(&Rate{}).Odds(Assumed, 30*time.Minute))/3
	if math.Abs(got-want) > 1e-4 {
		t.Errorf("%v, want %v", got, want)
	}
	for i := range 2 * maxPools {
		node := spotNode("m5.large", "a")
		node.Labels["karpenter.sh/nodepool"] = fmt.Sprint("pool-", i)
		standing = append(standing, node)
	}
	m.trials = New().trials
	m.judge(standing)
	if got := m.metric(t, "spot_handler_loss_odds"); len(got) != 2*maxPools {
		t.Errorf("%d series, want two of each of %d pools", len(got), maxPools)
	}
}
