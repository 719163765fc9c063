package queue

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

type metrics struct {
	messagesTotal *prometheus.CounterVec
	rejectedTotal *prometheus.CounterVec
	age           prometheus.Histogram
	lastPoll      prometheus.Gauge
	sourceErrors  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	source := prometheus.Labels{"source": string(interruption.Queue)}
	f := promauto.With(reg)
	m := &metrics{
		messagesTotal: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_messages_total",
			Help: "Messages by what became of them, each counted once, at its end.",
		}, []string{"outcome"}),
		rejectedTotal: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_messages_rejected_total",
			Help: "Messages that were malformed or unsupported, by what was found first.",
		}, []string{"reason"}),
		age: f.NewHistogram(prometheus.HistogramOpts{
			Name:                            "spot_handler_message_age_seconds",
			Help:                            "Time from EventBridge's stamp on a message to its receipt.",
			Buckets:                         []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 90, 120},
			NativeHistogramBucketFactor:     1.1,
			NativeHistogramMaxBucketNumber:  100,
			NativeHistogramMinResetDuration: time.Hour,
		}),
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
	for _, o := range outcomes() {
		m.messages(o)
	}
	for _, r := range rejectReasons() {
		m.rejections(r)
	}
	for _, r := range reasons() {
		m.errors(r)
	}
	return m
}

func (m *metrics) messages(o outcome) prometheus.Counter {
	return m.messagesTotal.WithLabelValues(string(o))
}

func (m *metrics) rejections(r rejectReason) prometheus.Counter {
	return m.rejectedTotal.WithLabelValues(string(r))
}

func (m *metrics) errors(r awsfault.Reason) prometheus.Counter {
	return m.sourceErrors.WithLabelValues(string(r))
}
