package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
)

// workload is what people know pods by: a Deployment, or whatever else has made them.
type workload struct {
	namespace, name string               // the name with its kind
	deployment      *plan.Deployment     // nil if there is none
	of              types.NamespacedName // the Deployment
	replicas        int
	controllers     []*controller
	pods            map[types.UID]*pod
	users           map[*lostNode]bool

	startup time.Duration // from having a node to Ready
	never   bool          // its pods do not become Ready

	base, ready int
	since       time.Time
	report      Workload
}

func (p *pod) startup(w *world) time.Duration {
	if p.workload == nil {
		return w.in.Assumptions.Ready.Duration()
	}
	return p.workload.startup
}

func (of *workload) neverReady() bool { return of != nil && of.never }

// begin works out what is known of the workload's pods at first.
func (of *workload) begin(w *world) {
	of.startup = w.in.Assumptions.Ready.Duration()
	if known, ok := w.in.Assumptions.ReadyOf[of.namespace+"/"+of.name]; ok {
		of.startup = known.Duration()
	}
	of.account(w)
	for _, p := range of.pods {
		of.never = of.never || of.ready == 0 && p.Spec.NodeName != "" && w.now.Sub(scheduledAt(p.Pod)) > of.startup+lateStart
	}
	of.base = min(of.ready, max(of.replicas, 1))
	of.report = Workload{Namespace: of.namespace, Name: of.name, Replicas: of.replicas, Ready: of.ready, FewestReady: of.ready}
}

// account adds up what was missing since the last change.
func (of *workload) account(w *world) {
	of.report.UnavailablePodSeconds += float64(max(0, of.base-of.ready)) * w.now.Sub(of.since).Seconds()
	of.since, of.ready = w.now, 0
	for _, p := range of.pods {
		if Serves(p.Pod) {
			of.ready++
		}
	}
	if of.ready < of.report.FewestReady {
		of.report.FewestReady, of.report.At = of.ready, w.offset(w.now)
	}
}

// WorkloadOf names what made a pod, as [Pod.Workload] does; empty if nothing did.
func WorkloadOf(p *corev1.Pod) string {
	kind, name := plan.WorkloadOf(p)
	if name == "" {
		return ""
	}
	return strings.ToLower(kind) + "/" + name
}

// readyOf are the assumptions about single workloads that follow from the conditions of their pods.
func readyOf(pods []*corev1.Pod) map[string]Assumption {
	of := map[string][]*corev1.Pod{}
	for _, p := range pods {
		if name := WorkloadOf(p); name != "" && !plan.Finished(p) {
			of[p.Namespace+"/"+name] = append(of[p.Namespace+"/"+name], p)
		}
	}
	known := map[string]Assumption{}
	for name, pods := range of {
		if s, ok := startupOf(pods); ok {
			known[name] = Assume(s.mean, fmt.Sprintf("history: %d of its pods", s.pods))
		}
	}
	return known
}

// Assumptions are what nobody can know beforehand.
type Assumptions struct {
	// Boot is the time from a replacement's request until it takes pods.
	Boot Assumption `json:"boot"`
	// Ready is the time that a pod takes from having a node to being Ready, where nothing is known
	// of its workload. What is known of those is in ReadyOf.
	Ready Assumption `json:"ready"`
	// ReadyOf is the same of single workloads, by NAMESPACE/KIND/NAME.
	ReadyOf map[string]Assumption `json:"readyOf,omitempty"`
	// Stop is how long a pod takes to end once it is deleted; never longer than its grace period.
	Stop Assumption `json:"stop"`
	// Detach is how long volumes take to be detached after their pods have gone.
	Detach Assumption `json:"detach"`
}

// Assumption is a time, and where it is from.
type Assumption struct {
	Value Seconds `json:"seconds"`
	// From is a flag, "assumed", or what in the cluster's history says so.
	From string `json:"from"`
}

// Assume is an assumption of that long.
func Assume(d time.Duration, from string) Assumption { return Assumption{Seconds(d.Seconds()), from} }

// Duration is the time.
func (a Assumption) Duration() time.Duration {
	return time.Duration(float64(a.Value) * float64(time.Second))
}

// Assumed are the assumptions for which there is neither a history nor a flag. An EC2 instance
// takes a good half minute to become a Node; detaching an EBS volume takes seconds.
func Assumed() Assumptions {
	return Assumptions{
		Boot: Assume(45*time.Second, fromNobody), Ready: Assume(10*time.Second, fromNobody),
		Stop: Assume(5*time.Second, fromNobody), Detach: Assume(6*time.Second, fromNobody),
	}
}

// fromNobody is the source of Assumed.
const fromNobody = "assumed"

// startup is how long so many pods took to become Ready. The API has whole seconds, so the mean of
// several is closer to the truth than each.
type startup struct {
	mean time.Duration
	pods int
}

// startupOf is the startup of a workload's pods; false if none is Ready. A pod that became Ready again
// later looks as if it had taken long: what is far from the median does not count.
func startupOf(pods []*corev1.Pod) (startup, bool) {
	var took []time.Duration
	for _, pod := range pods {
		if d, ok := plan.Startup(pod); ok {
			took = append(took, d)
		}
	}
	if len(took) == 0 {
		return startup{}, false
	}
	slices.Sort(took)
	median := took[(len(took)-1)/2]
	sum, n := time.Duration(0), 0
	for _, d := range took {
		if d <= 2*median+2*time.Second && d >= median/2-2*time.Second {
			sum, n = sum+d, n+1
		}
	}
	return startup{mean: sum / time.Duration(n), pods: n}, true
}
