package drain

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
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
		Help: "Pods whose eviction is due and refused, by a disruption budget, a terminating namespace or admission.",
	}, d.blockedPods)
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spot_handler_overlong_grace_pods",
		Help: "Pods that have to leave an interrupted node and whose grace period is longer than the whole time available.",
	}, d.overlong)
	refused := prometheus.NewDesc("spot_handler_budget_blocked_pods",
		"Pods whose eviction is due and refused, by the disruption budget that refuses them.", []string{"budget"}, nil)
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
func (d *Drainer) blockedBy() map[string]int {
	var ofBudgets []*corev1.Pod
	counts := map[string]int{}
	d.mu.Lock()
	for _, s := range d.sessions {
		s.note(func() {
			for _, t := range s.tracked {
				switch {
				case t.refusal == "" || !t.stays():
				case t.ofBudget:
					ofBudgets = append(ofBudgets, t.pod)
				default:
					counts[noBudget]++
				}
			}
		})
	}
	d.mu.Unlock()
	for _, pod := range ofBudgets {
		counts[budgetOf(d.budgets.of(pod))]++
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

// budgetOf names the only one of the budgets that cover a pod.
func budgetOf(budgets []*policyv1.PodDisruptionBudget) string {
	if len(budgets) != 1 {
		return noBudget
	}
	return budgets[0].Namespace + "/" + budgets[0].Name
}

// overlong counts the pods that have to leave and whose grace period and margin are longer
// than the whole time available: no drain can end them cleanly.
func (d *Drainer) overlong() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, s := range d.sessions {
		n += s.overlong(d.opts.Policy.Margin)
	}
	return float64(n)
}

// overlong counts them in the session. The window is never taken as shorter than SpotNotice:
// a process that started late, or heard late, is not the pod's fault.
func (s *session) overlong(margin time.Duration) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in.Deadline.IsZero() || s.known.IsZero() {
		return 0
	}
	window := max(interruption.SpotNotice, s.in.Deadline.Sub(s.known))
	sit, n := plan.Situation{NodeState: s.in}, 0
	for _, pod := range s.watch.All() {
		if sit.NotOurs(pod) == "" && plan.Grace(pod)+margin > window {
			n++
		}
	}
	return n
}
