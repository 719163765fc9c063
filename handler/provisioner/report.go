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

// ReadyTimer is a Backend that knows how long a replacement took to be Ready. For
// others it is measured from the first answer that this process has seen.
type ReadyTimer interface {
	// ReadyAfter is the time from the request to Ready; false if it is not known.
	ReadyAfter(r interruption.Replacement) (time.Duration, bool)
}

// report counts and logs each change of a replacement's state once, and logs once for each
// node which backend was chosen and why.
func (p *Provisioner) report(node *corev1.Node, rec interruption.Record, r interruption.Replacement, why string) {
	now := reported{instance: rec.Instance, backend: r.Backend, name: r.Name, state: r.State, tried: r.Attempts()}
	p.mu.Lock()
	last, known := p.reported[node.Name]
	if known && last.instance == now.instance {
		now.asked = last.asked
	} else {
		known = false
		last = reported{instance: rec.Instance}
		if prev := rec.Replacement; prev != nil && (prev.Backend != Spare || !Pending(prev.State)) { // an earlier process has reported it
			last.backend, last.name, last.state, last.tried = prev.Backend, prev.Name, prev.State, prev.Attempts()
		}
	}
	if now.asked.IsZero() && Pending(r.State) && last.state == "" {
		now.asked = time.Now()
	}
	if len(p.reported) >= maxReported { // nodes that went without being terminated; the records say the same
		clear(p.reported)
	}
	p.reported[node.Name] = now
	p.mu.Unlock()

	if n := now.tried - last.tried; n > 0 && now.backend == last.backend {
		p.metrics.replacements.WithLabelValues(r.Backend, result(StateFailed)).Add(float64(n))
	}
	if last.state != now.state || last.name != "" && last.name != now.name || last.backend != now.backend {
		p.count(r, now.asked)
	}
	undecided := r.Name == "" && Pending(r.State)
	wasUndecided := last.state == "" || last.name == "" && Pending(last.state)
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

// count counts the state that a replacement has reached.
func (p *Provisioner) count(r interruption.Replacement, asked time.Time) {
	if r.State == StateFailed && r.Tried != "" {
		return // counted as tried
	}
	p.metrics.replacements.WithLabelValues(r.Backend, result(r.State)).Inc()
	if r.State != StateReady {
		return
	}
	if timer, ok := p.backend(r.Backend).(ReadyTimer); ok {
		if after, ok := timer.ReadyAfter(r); ok {
			p.metrics.ready.WithLabelValues(r.Backend).Observe(after.Seconds())
		}
	} else if !asked.IsZero() {
		p.metrics.ready.WithLabelValues(r.Backend).Observe(time.Since(asked).Seconds())
	}
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
