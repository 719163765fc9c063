package offerings

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/nodes"
)

// maxPools bounds the pools of which there are odds as a metric.
const maxPools = 300

// trial is a time for which odds are given when it begins, and scored when it is over.
type trial struct {
	label  string
	within time.Duration
	began  time.Time
	of     map[Loss]*given

	nodes   uint64  // of all trials that are over
	squares float64 // the sum of how far their odds were from what came, squared
}

// given are the odds of some nodes, and how many of those have been lost since.
type given struct {
	odds        float64
	nodes, lost int
}

// judge counts the nodes that stand, ends the trials that are over, and begins the next. A node that
// leaves for another reason counts as not lost.
func (m *Memory) judge(standing []*corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fade()
	for _, t := range m.of {
		t.nodes = 0
	}
	for _, node := range standing {
		if of, spot := Of(node); spot {
			m.tally(Loss{of, nodes.PoolOf(node).Name}).nodes++
		}
	}
	for _, t := range m.trials {
		if m.at.Sub(t.began) < t.within {
			continue
		}
		for _, g := range t.of {
			t.nodes += uint64(g.nodes)
			t.squares += float64(g.lost)*math.Pow(1-g.odds, 2) + float64(g.nodes-g.lost)*math.Pow(g.odds, 2)
		}
		t.began, t.of = m.at, map[Loss]*given{}
		for loss, had := range m.of {
			if had.nodes > 0 {
				t.of[loss] = &given{odds: had.Odds(Assumed, t.within), nodes: had.nodes}
			}
		}
	}
	m.shrink()
}

// Collector is the metrics of what is lost: the pools that have lost too many nodes, of maxLosses at
// most, and the odds.
func (m *Memory) Collector() prometheus.Collector {
	lost := prometheus.NewDesc("spot_handler_lost_nodes",
		"Spot nodes that a pool has lost within 30 minutes, if they are 3 or more, and more than a quarter of those that it had.", []string{"pool"}, nil)
	odds := prometheus.NewDesc("spot_handler_loss_odds", "Probability that a spot node of the pool is lost within the time.", []string{"pool", "within"}, nil)
	squares := prometheus.NewDesc("spot_handler_loss_odds_squared_error", "How far the odds of each node were from what came, squared: the mean is their Brier score.", []string{"within"}, nil)
	return prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		pools := m.TooMany()
		pools[""], _ = pools[""] // always there, so a query finds a series
		for pool, l := range pools {
			ch <- prometheus.MustNewConstMetric(lost, prometheus.GaugeValue, float64(l.Lost), pool)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.fade()
		for _, t := range m.trials {
			for pool, mean := range m.means(t.within) {
				ch <- prometheus.MustNewConstMetric(odds, prometheus.GaugeValue, mean, pool, t.label)
			}
			ch <- prometheus.MustNewConstSummary(squares, t.nodes, t.squares, nil, t.label)
		}
	})
}

// means are the odds of a node of each pool, as of now, and those without a history of the pool without
// a name, unless that has nodes.
func (m *Memory) means(within time.Duration) map[string]float64 {
	means, nodes := map[string]float64{"": (&Rate{}).Odds(Assumed, within)}, map[string]float64{}
	for _, of := range slices.SortedFunc(maps.Keys(m.of), compare) {
		t := m.of[of]
		if _, has := means[of.Pool]; t.nodes > 0 && (has || len(means) < maxPools) {
			nodes[of.Pool] += float64(t.nodes)
			means[of.Pool] += (t.Odds(Assumed, within) - means[of.Pool]) * float64(t.nodes) / nodes[of.Pool]
		}
	}
	return means
}
