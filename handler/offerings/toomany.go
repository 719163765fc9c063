package offerings

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// A pool has lost too many spot nodes if it lost at least fewest, and more than one in share, within
// window: what takes their place would likely be next. Most of what follows a first loss comes
// within half an hour, and one or two are lost anywhere. Losses are counted in slots of time, so
// that few numbers are kept.
const (
	window = 30 * time.Minute
	slot   = 5 * time.Minute
	fewest = 3
	share  = 4
)

func slotOf(at time.Time) int64 { return at.Unix() / int64(slot/time.Second) }

// Losses are how many spot nodes a pool has lost in half an hour, and how many stand.
type Losses struct{ Lost, Standing int }

// String says it in a clause about the pool.
func (l Losses) String() string {
	return fmt.Sprintf("lost %d of %d spot nodes within %d minutes", l.Lost, l.Lost+l.Standing, int(window.Minutes()))
}

// TooMany are the pools that have lost too many of their spot nodes; none while it is not known
// which nodes stand.
func (m *Memory) TooMany() map[string]Losses {
	pools, all := m.recentLosses()
	if all == nil {
		return map[string]Losses{}
	}
	maps.DeleteFunc(pools, func(_ string, l Losses) bool { return l.Lost < fewest })
	if len(pools) == 0 {
		return pools
	}
	for _, node := range standing(all()) {
		pool := nodes.PoolOf(node).Name
		l, loses := pools[pool]
		if _, spot := Of(node); spot && loses {
			l.Standing++
			pools[pool] = l
		}
	}
	maps.DeleteFunc(pools, func(_ string, l Losses) bool { return l.Lost*share <= l.Lost+l.Standing })
	return pools
}

// recentLosses are how many nodes each pool has lost within window, and what knows the nodes of the
// cluster, which may take a lock of its own.
func (m *Memory) recentLosses() (pools map[string]Losses, all func() []*corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fade()
	pools = map[string]Losses{}
	for of, t := range m.of {
		l := pools[of.Pool]
		for _, n := range t.Recent {
			l.Lost += n
		}
		pools[of.Pool] = l
	}
	return pools, m.all
}

// standing are the nodes that EC2 leaves where they are, as far as is known: what is only recommended
// may never come, and neither may what waits for its time.
func standing(all []*corev1.Node) []*corev1.Node {
	return slices.DeleteFunc(slices.Clone(all), func(node *corev1.Node) bool {
		if !nodes.HasRecord(node) {
			return false
		}
		rec, _ := nodes.Record(node) // one that can't be read names no kind: the node might be lost
		return rec.Kind != interruption.RebalanceRecommendation && rec.Phase != interruption.Waiting && !rec.Rehearsed()
	})
}

// Collector is the metric of the pools that have lost too many nodes: maxLosses of them at most.
func (m *Memory) Collector() prometheus.Collector {
	lost := prometheus.NewDesc(
		"spot_handler_lost_nodes",
		"Spot nodes that a pool has lost within 30 minutes, if they are 3 or more, and more than a quarter of those that it had.",
		[]string{"pool"}, nil,
	)
	return prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		pools := m.TooMany()
		if _, there := pools[""]; !there {
			pools[""] = Losses{} // so that a query always finds a series
		}
		for pool, l := range pools {
			ch <- prometheus.MustNewConstMetric(lost, prometheus.GaugeValue, float64(l.Lost), pool)
		}
	})
}
