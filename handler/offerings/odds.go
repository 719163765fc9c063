package offerings

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/nodes"
)

// The history that is assumed of an offering before it has one of its own.
const assumedLost, assumedHours = 0.2, 20

// maxPools bounds the pools of which there are odds as a metric.
const maxPools = 300

// Odds is the probability that a node is lost within the time where so many were lost in so many
// node-hours. A short history says little, so a little is assumed before it. That the rate jumps after
// a loss is left out: on recorded fleets, odds that know of it are no better.
func Odds(lost, hours float64, within time.Duration) float64 {
	return 1 - math.Exp(-(lost+assumedLost)/(hours+assumedHours)*within.Hours())
}

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

// judge ends the trials that are over, and begins the next with the nodes that stand. A node that
// leaves for another reason counts as not lost.
func (m *Memory) judge(standing []*corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fade()
	for _, t := range m.trials {
		if m.at.Sub(t.began) < t.within {
			continue
		}
		for _, g := range t.of {
			t.nodes += uint64(g.nodes)
			t.squares += float64(g.lost)*math.Pow(1-g.odds, 2) + float64(g.nodes-g.lost)*math.Pow(g.odds, 2)
		}
		t.began, t.of = m.at, map[Loss]*given{}
		for _, node := range standing {
			if of, spot := Of(node); spot {
				loss := Loss{of, nodes.PoolOf(node).Name}
				had := cmp.Or(m.of[loss], &tally{})
				g := cmp.Or(t.of[loss], &given{odds: Odds(had.Lost, had.Hours, t.within)})
				g.nodes++
				t.of[loss] = g
			}
		}
	}
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
	means, nodes := map[string]float64{"": Odds(0, 0, within)}, map[string]float64{}
	stand := m.trials[0].of // the shortest trial has begun last
	for _, of := range slices.SortedFunc(maps.Keys(stand), compare) {
		if _, has := means[of.Pool]; has || len(means) < maxPools {
			had := cmp.Or(m.of[of], &tally{})
			nodes[of.Pool] += float64(stand[of].nodes)
			means[of.Pool] += (Odds(had.Lost, had.Hours, within) - means[of.Pool]) * float64(stand[of].nodes) / nodes[of.Pool]
		}
	}
	return means
}
