package karpenter

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// newLimitRefusals counts how often a pool's limits left no room. Events say which pool it
// was: pools come and go, and a label would have no value at the start.
func newLimitRefusals(reg prometheus.Registerer) prometheus.Counter {
	return promauto.With(reg).NewCounter(prometheus.CounterOpts{
		Name: "spot_handler_pool_limit_refusals_total",
		Help: "Times that a fallback pool was not taken because its limits left no room for the replacement.",
	})
}
