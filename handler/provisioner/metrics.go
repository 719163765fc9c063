package provisioner

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	replacements *prometheus.CounterVec
	ready        *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer, backends []string) *metrics {
	m := &metrics{
		replacements: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_replacements_total",
			Help: "Replacements that reached a state (requested, launched, ready, failed, unsupported), by backend. A state that nobody saw is not counted.",
		}, []string{"backend", "result"}),
		ready: promauto.With(reg).NewHistogramVec(prometheus.HistogramOpts{
			Name:                            "spot_handler_replacement_ready_seconds",
			Help:                            "Time from the request of a replacement until it was Ready.",
			Buckets:                         []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 40, 50, 60, 75, 90, 105, 120},
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  100,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"backend"}),
	}
	for _, backend := range append([]string{None}, backends...) {
		for _, state := range States() {
			m.replacements.WithLabelValues(backend, result(state))
		}
	}
	for _, backend := range backends {
		m.ready.WithLabelValues(backend)
	}
	return m
}
