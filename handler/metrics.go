package handler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"spot-handler/handler/interruption"
)

// seconds are the classic buckets of every histogram here: from well below a second,
// which is what a cordon takes, to the two minutes that EC2 gives.
var seconds = []float64{0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 75, 90, 105, 120}

// The values of drains_total's label result.
const (
	resultCompleted = "completed" // nothing was left to move
	resultDeadline  = "deadline"  // the deadline came first
	resultCanceled  = "canceled"  // called off
	resultFailed    = "failed"    // the node went before its drain had ended
)

// The values of pods_total's label outcome.
const (
	outcomeGraceful  = "graceful"
	outcomeTruncated = "truncated"
	outcomeForced    = "forced"
	outcomeLeft      = "left"
)

// rehearsal is what rehearsals are counted under, whatever kind they play, so no alert about that
// kind fires for one.
const rehearsal = string(interruption.Rehearsal)

// countedAs is the value of the label kind.
func countedAs(r interruption.Record) string {
	if r.Rehearsed() {
		return rehearsal
	}
	return string(r.Kind)
}

// counted lists every value of the label kind.
func counted() []string {
	all := []string{rehearsal}
	for _, kind := range interruption.Kinds() {
		all = append(all, string(kind))
	}
	return all
}

type metrics struct {
	notices  *prometheus.CounterVec
	lead     *prometheus.HistogramVec
	cordon   *prometheus.HistogramVec
	drains   *prometheus.CounterVec
	pods     *prometheus.CounterVec
	duration *prometheus.HistogramVec
	slack    *prometheus.HistogramVec
	rejected prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "spot_handler_" + name, Help: help, Buckets: seconds,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}, labels)
	}
	m := &metrics{
		notices: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_notices_total",
			Help: "Notices that were new and are recorded on a Node.",
		}, []string{"kind", "source"}),
		lead:   histogram("notice_lead_seconds", "Time left until the deadline when a notice was seen.", "kind", "source"),
		cordon: histogram("notice_to_cordon_seconds", "Time from seeing a notice, and its Node, to the cordon.", "source"),
		drains: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_drains_total",
			Help: "Drains that ended, by how.",
		}, []string{"kind", "result"}),
		pods: f.NewCounterVec(prometheus.CounterOpts{
			Name: "spot_handler_pods_total",
			Help: "Pods that had to leave an interrupted node, by how they left it. Counted when the node's drain ends.",
		}, []string{"kind", "outcome"}),
		duration: histogram("drain_duration_seconds", "Time from seeing a notice, or from when its time had come, to the end of the drain.", "kind"),
		slack:    histogram("drain_slack_seconds", "Time left until the deadline when a drain was completed.", "kind"),
	}
	m.rejected = f.NewCounter(prometheus.CounterOpts{
		Name: "spot_handler_records_rejected_total",
		Help: "Records that were not acted on: they could not be read, or were about another instance than their Node's.",
	})
	for _, source := range interruption.Sources() {
		m.cordon.WithLabelValues(string(source))
		for _, kind := range interruption.Kinds() {
			m.notices.WithLabelValues(string(kind), string(source))
			m.lead.WithLabelValues(string(kind), string(source))
		}
	}
	for _, kind := range counted() {
		m.duration.WithLabelValues(kind)
		m.slack.WithLabelValues(kind)
		for _, result := range []string{resultCompleted, resultDeadline, resultCanceled, resultFailed} {
			m.drains.WithLabelValues(kind, result)
		}
		m.left(kind, interruption.Pods{})
	}
	return m
}

func (m *metrics) noticed(n interruption.Notice, took time.Duration, cordoned bool) {
	m.notices.WithLabelValues(string(n.Kind), string(n.Source)).Inc()
	if cordoned {
		m.cordon.WithLabelValues(string(n.Source)).Observe(took.Seconds())
	}
	// Hibernation begins at once: no lead is not a notice that came late.
	if !n.Deadline.IsZero() && n.Action != interruption.ActionHibernate {
		m.lead.WithLabelValues(string(n.Kind), string(n.Source)).Observe(max(0, n.Deadline.Sub(n.Received).Seconds()))
	}
}

func (m *metrics) ended(r interruption.Record, result string, pods interruption.Pods, at time.Time) {
	kind := countedAs(r)
	m.drains.WithLabelValues(kind, result).Inc()
	m.left(kind, pods)
	m.duration.WithLabelValues(kind).Observe(at.Sub(r.Since()).Seconds())
	if d := r.DeadlineTime(); result == resultCompleted && !d.IsZero() {
		m.slack.WithLabelValues(kind).Observe(d.Sub(at).Seconds())
	}
}

// left counts pods by how they left.
func (m *metrics) left(kind string, pods interruption.Pods) {
	m.pods.WithLabelValues(kind, outcomeGraceful).Add(float64(pods.Graceful))
	m.pods.WithLabelValues(kind, outcomeTruncated).Add(float64(pods.Truncated))
	m.pods.WithLabelValues(kind, outcomeForced).Add(float64(pods.Forced))
	m.pods.WithLabelValues(kind, outcomeLeft).Add(float64(pods.Left))
}
