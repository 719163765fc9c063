package early

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// What became of a notice that came before its Node; a label's value.
const (
	recorded = "recorded" // the Node appeared
	expired  = "expired"  // it did not, in time
	dropped  = "dropped"  // not kept, as too many others were
)

type metrics struct{ total *prometheus.CounterVec }

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_early_notices_total",
		Help: "Notices about instances that were no Node, by what became of them.",
	}, []string{"outcome"})}
	for _, outcome := range []string{recorded, expired, dropped} {
		m.notices(outcome)
	}
	return m
}

func (m *metrics) notices(outcome string) prometheus.Counter {
	return m.total.WithLabelValues(outcome)
}
