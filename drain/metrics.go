package drain

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	evictions *prometheus.CounterVec
}

// The values of evictions_total's label code.
const (
	codeError = "error" // no reply
	codeOther = "other" // a status that the eviction API does not document
)

var evictionCodes = []string{"201", "403", "404", "409", "429", "500"}

func newMetrics(reg prometheus.Registerer, d *Drainer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		evictions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_evictions_total",
			Help: "Eviction requests, by the API server's reply: an HTTP status, other, or error if there was none.",
		}, []string{"code"}),
	}
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spot_handler_blocked_pods",
		Help: "Pods whose eviction is due and refused, by a disruption budget, a terminating namespace or admission.",
	}, d.blockedPods)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spot_handler_overlong_grace_pods",
		Help: "Pods that have to leave an interrupted node and whose grace period is longer than the whole time available.",
	}, d.overlong)
	reg.MustRegister(newBlocking(d.blockedBy))
	for _, code := range append(evictionCodes, codeError, codeOther) {
		m.evictions.WithLabelValues(code)
	}
	return m
}
