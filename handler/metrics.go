package handler

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// seconds are the classic buckets of every histogram here: from well below a second,
// which is what a cordon takes, to the two minutes that EC2 gives.
var seconds = []float64{0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 75, 90, 105, 120}

// The values of drains_total's label result.
const (
	resultCompleted = "completed" // nothing was left to move
	resultDeadline  = "deadline"  // the deadline came first
	resultCanceled  = "canceled"  // cancelled
	resultFailed    = "failed"    // the node went before its drain had ended
)

// rehearsal is what rehearsals are counted under, whatever kind they play, so no alert about that
// kind fires for one.
const rehearsal = string(interruption.Rehearsal)

// wayBack is what nodes that go back to spot are counted under: EC2 has said nothing about them.
const wayBack = string(interruption.Return)

// countedAs is the value of the label kind.
func countedAs(r interruption.Record) string {
	switch {
	case r.Rehearsed():
		return rehearsal
	case r.Returns():
		return wayBack
	}
	return string(r.Kind)
}

// counted lists every value of the label kind.
func counted() []string {
	all := []string{rehearsal, wayBack}
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
	m.notices.WithLabelValues(string(interruption.RebalanceRecommendation), wayBack)
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

func (m *metrics) noticed(n interruption.Notice) {
	m.notices.WithLabelValues(string(n.Kind), string(n.Source)).Inc()
	// Hibernation begins at once: no lead is not a notice that came late.
	if !n.Deadline.IsZero() && n.Action != interruption.ActionHibernate {
		m.lead.WithLabelValues(string(n.Kind), string(n.Source)).Observe(max(0, n.Deadline.Sub(n.Received).Seconds()))
	}
}

func (m *metrics) cordoned(by interruption.Source, took time.Duration) {
	m.cordon.WithLabelValues(string(by)).Observe(took.Seconds())
}

func (m *metrics) ended(r interruption.Record, result string, pods interruption.Pods, at time.Time) {
	kind, since := countedAs(r), r.Since()
	if r.Kind.Certain() { // from its notice, also if that was recorded late
		since = r.LastReceived()
	}
	m.drains.WithLabelValues(kind, result).Inc()
	m.left(kind, pods)
	m.duration.WithLabelValues(kind).Observe(at.Sub(since).Seconds())
	if d := r.Deadline; result == resultCompleted && !d.IsZero() {
		m.slack.WithLabelValues(kind).Observe(d.Sub(at).Seconds())
	}
}

// left counts pods by how they left.
func (m *metrics) left(kind string, pods interruption.Pods) {
	for _, o := range pods.EachOutcome() {
		m.pods.WithLabelValues(kind, o.Name).Add(float64(o.Pods))
	}
}

// newActive collects the interruptions under way at each scrape: no count has to be kept right,
// and what is over leaves no series behind.
func newActive(list func() []activeNode) prometheus.Collector {
	byPhase := prometheus.NewDesc("spot_handler_active_interruptions",
		"Interrupted nodes that this process sees to their end, by phase.", []string{"kind", "phase"}, nil)
	byPool := prometheus.NewDesc("spot_handler_interrupted_nodes",
		"Interrupted nodes that are being drained, by pool, zone and state of their replacement.",
		[]string{"kind", "pool", "zone", "replacement"}, nil)
	deadline := prometheus.NewDesc("spot_handler_nearest_deadline_timestamp_seconds",
		"The earliest deadline of the drains that have not ended, in seconds since 1970; 0 while there is none.", []string{"kind"}, nil)
	oldest := prometheus.NewDesc("spot_handler_oldest_drain_timestamp_seconds",
		"When the oldest drain under way began, or the request for its replacement, in seconds since 1970; 0 while there is none.", []string{"kind"}, nil)
	return prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		type phaseKey struct {
			kind  string
			phase interruption.Phase
		}
		type poolKey struct {
			kind        string
			home        home
			replacement string
		}
		phases, nearest, began := map[phaseKey]int{}, map[string]time.Time{}, map[string]time.Time{}
		pools := map[poolKey]int{}
		for _, kind := range counted() { // always there, so a query finds a series
			pools[poolKey{kind: kind, replacement: noReplacement}] = 0
		}
		nodes := list()
		shown := largestHomes(nodes)
		for _, n := range nodes {
			phases[phaseKey{n.kind, n.phase}]++
			began[n.kind] = interruption.Earlier(began[n.kind], n.begun)
			if n.phase.Over() || n.phase == interruption.Waiting {
				continue
			}
			nearest[n.kind] = interruption.Earlier(nearest[n.kind], n.deadline)
			if !shown[n.home] {
				n.home = home{otherHome, otherHome}
			}
			pools[poolKey{n.kind, n.home, n.replacement}]++
		}

		gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
		}
		for _, kind := range counted() {
			for _, phase := range interruption.Phases() {
				gauge(byPhase, float64(phases[phaseKey{kind, phase}]), kind, string(phase))
			}
			gauge(deadline, unix(nearest[kind]), kind)
			gauge(oldest, unix(began[kind]), kind)
		}
		for k, n := range pools {
			gauge(byPool, float64(n), k.kind, k.home.pool, k.home.zone, k.replacement)
		}
	})
}

// activeNode is an interrupted node, by the labels it is counted under.
type activeNode struct {
	kind     string // as counted
	phase    interruption.Phase
	deadline time.Time
	begun    time.Time // zero if its drain has not begun
	home     home
	// replacement is the state of the node's replacement in lower case, or noReplacement.
	replacement string
}

// home is where a node is. Both fields are empty if the Node does not say.
type home struct{ pool, zone string }

// noReplacement is the state of a replacement that has not been requested.
const noReplacement = "none"

// maxHomes is how many pools and zones can have series of their own at the same time. It is
// more than a large cluster has. Nodes of any others are counted together, so whatever names
// pools cannot flood the monitoring.
const maxHomes = 300

// otherHome is the pool and the zone of whatever exceeds maxHomes.
const otherHome = "other"

// unix is the time in seconds since 1970; 0 if there is none.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// largestHomes are the maxHomes pools and zones with the most nodes, always including that of
// the nodes that name none.
func largestHomes(nodes []activeNode) map[home]bool {
	count := map[home]int{}
	for _, n := range nodes {
		count[n.home]++
	}
	delete(count, home{}) // which is shown anyway
	homes := slices.SortedFunc(maps.Keys(count), func(a, b home) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(a.pool, b.pool), cmp.Compare(a.zone, b.zone))
	})
	shown := map[home]bool{{}: true}
	for _, h := range homes[:min(len(homes), maxHomes)] {
		shown[h] = true
	}
	return shown
}

// active lists the interrupted nodes that this process reconciles.
func (h *Handler) active() []activeNode {
	var list []activeNode
	h.memory.change(func() {
		for name, k := range h.memory.byNode {
			// A kind from a newer version's record has no series.
			if k.rec.Phase == "" || k.rec.Phase == interruption.Released || !slices.Contains(interruption.Kinds(), k.rec.Kind) {
				continue
			}
			n := activeNode{
				kind:        countedAs(k.rec),
				phase:       k.rec.Phase,
				deadline:    k.rec.Deadline,
				begun:       begun(k.rec),
				replacement: noReplacement,
			}
			if node, ok := h.opts.Index.Get(name); ok {
				n.home = homeOf(node)
			}
			if r := k.replacementOf(k.rec); r != nil && slices.Contains(provisioner.States(), r.State) {
				n.replacement = strings.ToLower(r.State)
			}
			list = append(list, n)
		}
	})
	return list
}

// begun is when the drain of a record under way began; zero if it has not, or has ended.
func begun(rec interruption.Record) time.Time {
	recommended := rec.Kind == interruption.RebalanceRecommendation
	if rec.Phase.Over() || recommended && !rec.TurnTaken() || !recommended && rec.Phase == interruption.Waiting {
		return time.Time{}
	}
	return rec.Since()
}

func homeOf(node *corev1.Node) home {
	return home{nodes.PoolOf(node).Name, node.Labels[corev1.LabelTopologyZone]}
}
