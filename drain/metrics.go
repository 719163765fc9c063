package drain

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The values of evictions_total's label code.
const (
	codeError = "error" // no reply
	codeOther = "other" // a status that the eviction API does not document
)

var evictionCodes = []string{"201", "403", "404", "409", "429", "500"}

// expose registers the metrics of all drains, and returns the counter of evictions.
func (d *Drainer) expose(reg prometheus.Registerer) *prometheus.CounterVec {
	f := promauto.With(reg)
	evictions := f.NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_evictions_total",
		Help: "Eviction requests, by the API server's reply: an HTTP status, other, or error if there was none.",
	}, []string{"code"})
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spot_handler_blocked_pods",
		Help: "Pods whose eviction is due and refused, by a PDB, a terminating namespace or admission.",
	}, d.blockedPods)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spot_handler_overlong_grace_pods",
		Help: "Pods that have to leave an interrupted node and whose grace period is longer than the whole time available.",
	}, d.overlong)
	refused := prometheus.NewDesc("spot_handler_budget_blocked_pods",
		"Pods whose eviction is due and refused, by the PDB that refuses them.", []string{"budget"}, nil)
	// A budget has a series only while it refuses pods: the number of series follows the drains
	// under way, and not the cluster's history.
	reg.MustRegister(prometheus.CollectorFunc(func(ch chan<- prometheus.Metric) {
		for budget, n := range mostBlocking(d.blockedBy()) {
			ch <- prometheus.MustNewConstMetric(refused, prometheus.GaugeValue, float64(n), budget)
		}
	}))
	for _, code := range append(evictionCodes, codeError, codeOther) {
		evictions.WithLabelValues(code)
	}
	return evictions
}

// maxBudgets is how many disruption budgets have a series of their own at the same moment.
// The rest are counted together: a cluster in which every namespace has a blocking budget
// must not overload its monitoring.
const maxBudgets = 100

// What budget_blocked_pods calls a budget, where it is not NAMESPACE/NAME. It is one
// label, as Prometheus gives our own namespace to the label of that name.
const (
	// noBudget stands for the pods that no single budget refuses: those in a terminating
	// namespace, those with two budgets, those that admission denies, and those whose budgets
	// have not been read yet.
	noBudget = ""
	// otherBudgets are those beyond maxBudgets.
	otherBudgets = "other"
)

// mostBlocking keeps the maxBudgets budgets that refuse the most pods and adds up the rest.
// noBudget is always among them, so there is always a series to look at.
func mostBlocking(counts map[string]int) map[string]int {
	kept := map[string]int{noBudget: counts[noBudget]}
	delete(counts, noBudget)
	budgets := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b))
	})
	for i, budget := range budgets {
		shown := budget
		if i >= maxBudgets {
			shown = otherBudgets
		}
		kept[shown] += counts[budget]
	}
	return kept
}

// blockedBy counts the pods that are refused at this moment, by their budget.
func (d *Drainer) blockedBy() (counts map[string]int) {
	if d.inbox.running.Load() {
		d.inbox.ask(context.Background(), func(time.Time) { counts = d.fleet.RefusedPods() })
	}
	return counts
}

// blockedPods is their number.
func (d *Drainer) blockedPods() (n float64) {
	for _, pods := range d.blockedBy() {
		n += float64(pods)
	}
	return n
}

// overlong counts the pods that no drain can end cleanly.
func (d *Drainer) overlong() (n float64) {
	if d.inbox.running.Load() {
		d.inbox.ask(context.Background(), func(time.Time) { n = float64(d.fleet.OverlongPods()) })
	}
	return n
}
