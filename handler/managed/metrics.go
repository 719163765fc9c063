package managed

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/handler/awsfault"
)

type metrics struct{ calls *prometheus.CounterVec }

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{calls: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_tag_lookups_total",
		Help: "Calls to EC2 for the tags of instances, by what came of them.",
	}, []string{"result"})}
	for _, r := range awsfault.Results() {
		m.calls.WithLabelValues(r)
	}
	return m
}

func (m *metrics) call(err error) { m.calls.WithLabelValues(awsfault.Result(err)).Inc() }
