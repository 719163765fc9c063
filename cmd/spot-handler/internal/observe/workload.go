package observe

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/cmd/spot-handler/internal/plan"
	drainplan "spot-handler/drain/plan"
)

// countedKinds are the kinds whose ready pods are counted: they keep as many as they ask for. Jobs
// end, and of other kinds nobody knows what they select.
var countedKinds = []string{"deployment", "statefulset", "replicaset"}

// workload counts the ready pods of one.
type workload struct {
	name     types.NamespacedName
	selector labels.Selector
	desired  int
	ready    map[types.UID]bool // nil until all its pods are known
	samples  []Sample
}

func (w *workload) count(at time.Time, pod *corev1.Pod, gone bool) {
	if w.ready != nil {
		w.note(pod, gone)
		w.sample(at)
	}
}

func (w *workload) note(pod *corev1.Pod, gone bool) {
	if pod.Namespace != w.name.Namespace {
		return
	}
	if !gone && plan.Serves(pod) && w.selector.Matches(labels.Set(pod.Labels)) {
		w.ready[pod.UID] = true
	} else {
		delete(w.ready, pod.UID)
	}
}

func (w *workload) sample(at time.Time) {
	s := Sample{At: at, Ready: len(w.ready), Desired: w.desired}
	if n := len(w.samples); n > 0 && w.samples[n-1].Ready == s.Ready && w.samples[n-1].Desired == s.Desired {
		return
	}
	w.samples = append(w.samples, s)
}

// recorded is the time from the first notice on. What was missing before is nobody's fault.
func (w *workload) recorded(begin, now time.Time) Workload {
	r := Workload{Namespace: w.name.Namespace, Name: w.name.Name}
	first := 0 // of those that count
	for first+1 < len(w.samples) && !w.samples[first+1].At.After(begin) {
		first++
	}
	r.Samples = slices.Clone(w.samples[first:])
	r.Fewest = r.Samples[0].Ready
	before := r.Fewest
	for i, s := range r.Samples {
		missing := s.Missing(before)
		until := now
		if i+1 < len(r.Samples) {
			until = r.Samples[i+1].At
		}
		r.Fewest, r.Missing = min(r.Fewest, s.Ready), max(r.Missing, missing)
		r.UnavailableSeconds += float64(missing) * max(0, until.Sub(s.At)).Seconds()
	}
	return r
}

// budget is a disruption budget, and the pods that it selects.
type budget struct {
	Budget
	selector labels.Selector
}

// recorded names the workloads whose pods have to leave and are covered. Bare pods have no count.
func (b *budget) recorded(lives map[types.UID]*podLife) Budget {
	r := b.Budget
	for _, l := range lives {
		covers := l.Namespace == b.Namespace && b.selector.Matches(labels.Set(l.pod.Labels))
		if covers && l.Workload != "" && !slices.Contains(r.Workloads, l.Workload) {
			r.Workloads = append(r.Workloads, l.Workload)
		}
	}
	slices.Sort(r.Workloads)
	return r
}

// controller takes in a change of a workload: what it selects and how many pods it asks for.
func (o *Observer) controller(at time.Time, kind string, object *unstructured.Unstructured, gone bool) {
	var is drainplan.Deployment // of which the others have those two fields too
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &is); err != nil {
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(is.Spec.Selector)
	if err != nil {
		return
	}
	desired := is.Replicas()
	if gone {
		desired = 0
	}
	o.workload(at, types.NamespacedName{Namespace: object.GetNamespace(), Name: kind + "/" + object.GetName()}, selector, desired)
}

func (o *Observer) workload(at time.Time, name types.NamespacedName, selector labels.Selector, desired int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.workloads[name]
	if w == nil {
		w = &workload{name: name}
		o.workloads[name] = w
	}
	w.selector, w.desired = selector, desired
	if o.known.Has(name.Namespace) {
		o.recount(at, w)
	}
}

// counted is called when all pods of a namespace are known: from then on its workloads have counts.
func (o *Observer) counted(at time.Time, namespace string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known.Insert(namespace)
	for _, w := range o.workloads {
		if w.name.Namespace == namespace {
			o.recount(at, w)
		}
	}
}

func (o *Observer) recount(at time.Time, w *workload) {
	w.ready = map[types.UID]bool{}
	for _, pod := range o.pods {
		w.note(pod, false)
	}
	w.sample(at)
}

// budget takes a change of a disruption budget.
func (o *Observer) budget(_ time.Time, b *policyv1.PodDisruptionBudget, gone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if gone || err != nil {
		return
	}
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Name}
	known := o.budgets[name]
	if known == nil || len(o.nodes) == 0 { // what was before the notice is of no interest
		known = &budget{Budget: Budget{Namespace: b.Namespace, Name: b.Name, Fewest: int(b.Status.CurrentHealthy)}}
	}
	o.budgets[name], known.selector = known, selector
	known.Needed = max(known.Needed, int(b.Status.DesiredHealthy))
	known.Fewest = min(known.Fewest, int(b.Status.CurrentHealthy))
}
