package imds

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

type metrics struct {
	lastPoll     prometheus.Gauge
	sourceErrors *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	source := prometheus.Labels{"source": string(interruption.IMDS)}
	f := promauto.With(reg)
	m := &metrics{
		lastPoll: f.NewGauge(prometheus.GaugeOpts{
			Name:        "spot_handler_last_poll_timestamp_seconds",
			Help:        "When the source was last read to its end, in seconds since 1970.",
			ConstLabels: source,
		}),
		sourceErrors: f.NewCounterVec(prometheus.CounterOpts{
			Name:        "spot_handler_source_errors_total",
			Help:        "Calls to the source that failed, or whose answer could not be used.",
			ConstLabels: source,
		}, []string{"reason"}),
	}
	for _, r := range reasons() {
		m.errors(r)
	}
	return m
}

func (m *metrics) errors(r awsfault.Reason) prometheus.Counter {
	return m.sourceErrors.WithLabelValues(string(r))
}
