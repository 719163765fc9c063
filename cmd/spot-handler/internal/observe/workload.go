package observe

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
)

// workloadRef names the controller of a pod; zero if it has none.
type workloadRef struct {
	Kind string
	types.NamespacedName
}

// workloadOf is the controller that a pod belongs to, or belonged to before it was surged.
func workloadOf(pod *corev1.Pod) workloadRef {
	kind, name := drain.WorkloadOf(pod)
	if name == "" {
		return workloadRef{}
	}
	return workloadRef{kind, types.NamespacedName{Namespace: pod.Namespace, Name: name}}
}

// String names it within its namespace, such as deployment/web.
func (r workloadRef) String() string {
	if r.Name == "" {
		return ""
	}
	return strings.ToLower(r.Kind) + "/" + r.Name
}

// counted reports whether the ready pods of such a workload are counted: it keeps as many as it
// asks for. Jobs end, and of other kinds nobody knows what they select.
func (r workloadRef) counted() bool {
	return r.Kind == "Deployment" || r.Kind == "StatefulSet" || r.Kind == "ReplicaSet"
}

// workload counts the ready pods of one.
type workload struct {
	ref      workloadRef
	selector labels.Selector
	desired  int
	counting bool // all its pods are known
	ready    map[types.UID]bool
	samples  []Sample
}

func (w *workload) count(at time.Time, pod *corev1.Pod, gone bool) {
	if w.counting {
		w.note(pod, gone)
		w.sample(at)
	}
}

func (w *workload) note(pod *corev1.Pod, gone bool) {
	if pod.Namespace != w.ref.Namespace {
		return
	}
	if !gone && isReady(pod) && w.selector.Matches(labels.Set(pod.Labels)) {
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

// tell tells of the time from the first notice on. What was missing before is nobody's fault.
func (w *workload) tell(begin, now time.Time) Workload {
	told := Workload{Namespace: w.ref.Namespace, Name: w.ref.String()}
	for _, s := range w.samples {
		if n := len(told.Samples); n == 1 && !s.At.After(begin) {
			told.Samples = nil
		}
		told.Samples = append(told.Samples, s)
	}
	if len(told.Samples) == 0 {
		return told
	}
	told.Fewest = told.Samples[0].Ready
	before := told.Fewest
	for i, s := range told.Samples {
		missing := s.missing(before)
		until := now
		if i+1 < len(told.Samples) {
			until = told.Samples[i+1].At
		}
		told.Fewest, told.Missing = min(told.Fewest, s.Ready), max(told.Missing, missing)
		told.UnavailableSeconds += float64(missing) * max(0, until.Sub(s.At)).Seconds()
	}
	return told
}

// isReady reports whether a pod serves: it is Ready and has not been told to end.
func isReady(pod *corev1.Pod) bool {
	_, ready := drain.Ready(pod)
	return ready && pod.DeletionTimestamp == nil
}
