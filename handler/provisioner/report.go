package provisioner

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// report counts and logs each change of a replacement's state once, and logs once for each
// node which backend was chosen and why.
func (p *Provisioner) report(node *corev1.Node, rec interruption.Record, r interruption.Replacement, why string) {
	var last interruption.Replacement
	if prev := rec.Replacement; prev != nil && (prev.Backend != Spare || !Pending(prev.State)) {
		last = *prev
	}
	another := last.Name != "" && last.Name != r.Name
	p.mu.Lock()
	asked := p.asked[node.Name]
	switch {
	case !Pending(r.State):
		delete(p.asked, node.Name)
	case another, !Pending(last.State):
		p.asked[node.Name] = time.Now()
	}
	p.mu.Unlock()

	if n := r.Attempts() - last.Attempts(); n > 0 && r.Backend == last.Backend {
		p.metrics.replacements.WithLabelValues(r.Backend, result(StateFailed)).Add(float64(n))
	}
	if tried := r.State == StateFailed && r.Tried != ""; !tried && (another || last.State != r.State || last.Backend != r.Backend) {
		p.metrics.replacements.WithLabelValues(r.Backend, result(r.State)).Inc()
		if r.State == StateReady && !asked.IsZero() {
			p.metrics.ready.WithLabelValues(r.Backend).Observe(time.Since(asked).Seconds())
		}
	}
	undecided := r.Name == "" && Pending(r.State)
	wasUndecided := last.State == "" || last.Name == "" && Pending(last.State)
	if undecided || !wasUndecided {
		return
	}
	if r.State == StateUnsupported && !p.said.First(r.Reason) {
		return // what a thousand nodes have in common is logged for the first of them
	}
	event := p.log.Info().Str("node", node.Name).Str("instance_id", rec.Instance).Str("backend", r.Backend).Str("why", why).Str("state", r.State)
	for key, value := range map[string]string{"pool": r.Pool, "replacement": r.Name, "reason": r.Reason} {
		if value != "" {
			event = event.Str(key, value)
		}
	}
	event.Msg("provisioner chosen")
}

// Once remembers what was said, so as to say it once. It is safe for concurrent use.
type Once struct {
	mu   sync.Mutex
	said map[string]struct{}
}

// maxSaid bounds the texts that are remembered as said. Beyond that all are forgotten, and said again.
const maxSaid = 1000

// First reports whether the text is new.
func (o *Once) First(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, again := o.said[text]; again {
		return false
	}
	if o.said == nil || len(o.said) >= maxSaid {
		o.said = map[string]struct{}{}
	}
	o.said[text] = struct{}{}
	return true
}

// Cause is the API server's text without the object's name, which differs between nodes.
func Cause(err error) string {
	text := err.Error()
	if _, why, ok := strings.Cut(text, "is forbidden: "); ok {
		return why
	}
	return text
}

// result is the state as a metric's label.
func result(state string) string { return strings.ToLower(state) }

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
