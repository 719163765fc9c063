package placeholder

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// registerMetrics has the placeholders counted at each scrape.
func registerMetrics(reg prometheus.Registerer, cache *store) {
	for state, count := range map[string]func() float64{
		"pending": func() float64 { pending, _ := cache.counts(); return float64(pending) },
		"bound":   func() float64 { _, bound := cache.counts(); return float64(bound) },
	} {
		promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
			Name: "spot_handler_placeholders", Help: "Placeholder pods that exist: pending, or bound to a node.",
			ConstLabels: prometheus.Labels{"state": state},
		}, count)
	}
}
