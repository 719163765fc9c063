package placeholder

import "github.com/prometheus/client_golang/prometheus"

// gauge counts the placeholders at each scrape.
type gauge struct {
	desc  *prometheus.Desc
	cache *store
}

var _ prometheus.Collector = gauge{}

func registerMetrics(reg prometheus.Registerer, cache *store) {
	if reg == nil {
		return
	}
	reg.MustRegister(gauge{cache: cache, desc: prometheus.NewDesc("spot_handler_placeholders",
		"Placeholder pods that there are: pending, or bound to a node.", []string{"state"}, nil)})
}

func (g gauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

func (g gauge) Collect(ch chan<- prometheus.Metric) {
	pending, bound := g.cache.counts()
	ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(pending), "pending")
	ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(bound), "bound")
}
