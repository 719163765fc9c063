package provisioner

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
)

// decision is the answer about a node's replacement, and why that backend gave it.
type decision struct {
	interruption.Replacement
	why string
}

// report counts, times and logs each change of a replacement's state once.
func (p *Provisioner) report(node *corev1.Node, rec interruption.Record, d decision) {
	var last interruption.Replacement
	if prev := rec.Replacement; prev != nil && (prev.Backend != Spare || !Pending(prev.State)) {
		last = *prev
	}
	requested := p.requestedAt(node.Name, last, d.Replacement)
	if !rec.Returns() || d.State != StateFailed && d.State != StateUnsupported { // else nothing is missing: the node stays
		p.count(last, d.Replacement, requested)
	}
	p.logChoice(node, rec.Instance, last, d)
}

// isAnother reports whether r is not the replacement that was reported last, but one after it.
func isAnother(last, r interruption.Replacement) bool { return last.Name != "" && last.Name != r.Name }

// requestedAt is when this process saw the node's pending replacement requested; zero if it did not.
func (p *Provisioner) requestedAt(node string, last, r interruption.Replacement) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.asked[node]
	switch {
	case !Pending(r.State):
		delete(p.asked, node)
	case isAnother(last, r), !Pending(last.State):
		p.asked[node] = time.Now()
	}
	return at
}

// count counts the states that a replacement has reached, and how long it took to be Ready.
func (p *Provisioner) count(last, r interruption.Replacement, requested time.Time) {
	if n := r.Attempts() - last.Attempts(); n > 0 && r.Backend == last.Backend {
		p.metrics.replacements.WithLabelValues(r.Backend, strings.ToLower(StateFailed)).Add(float64(n))
	}
	if r.State == StateFailed && r.Tried != "" { // counted by its attempts
		return
	}
	if !isAnother(last, r) && last.State == r.State && last.Backend == r.Backend {
		return
	}
	p.metrics.replacements.WithLabelValues(r.Backend, strings.ToLower(r.State)).Inc()
	if r.State == StateReady && !requested.IsZero() {
		p.metrics.ready.WithLabelValues(r.Backend).Observe(time.Since(requested).Seconds())
	}
}

// logChoice logs once for each node which backend was chosen and why.
func (p *Provisioner) logChoice(node *corev1.Node, instance string, last interruption.Replacement, d decision) {
	undecided := d.Name == "" && Pending(d.State)
	wasUndecided := last.State == "" || last.Name == "" && Pending(last.State)
	if undecided || !wasUndecided {
		return
	}
	if d.State == StateUnsupported && !p.said.First(d.Reason) {
		return // what a thousand nodes have in common is logged for the first of them
	}
	event := p.log.Info().Str("node", node.Name).Str("instance_id", instance).
		Str("backend", d.Backend).Str("why", d.why).Str("state", d.State)
	for key, value := range map[string]string{"pool": d.Pool, "replacement": d.Name, "reason": d.Reason} {
		if value != "" {
			event = event.Str(key, value)
		}
	}
	event.Msg("provisioner chosen")
}

// Once remembers what was said, so as to say it once. It is safe for concurrent use.
type Once struct {
	said  sync.Map
	texts atomic.Int64
}

// maxSaid bounds the texts that are remembered as said. Beyond that all are forgotten, and said again.
const maxSaid = 1000

// First reports whether the text is new.
func (o *Once) First(text string) bool {
	_, again := o.said.LoadOrStore(text, nil)
	if !again && o.texts.Add(1) > maxSaid {
		o.texts.Store(0)
		o.said.Clear()
	}
	return !again
}

// Cause is the API server's text without the object's name, which differs between nodes.
func Cause(err error) string {
	text := err.Error()
	if _, why, ok := strings.Cut(text, "is forbidden: "); ok {
		return why
	}
	return text
}

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
			m.replacements.WithLabelValues(backend, strings.ToLower(state))
		}
	}
	for _, backend := range backends {
		m.ready.WithLabelValues(backend)
	}
	return m
}
