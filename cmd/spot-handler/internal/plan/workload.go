package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
)

// workload is what people know pods by: a Deployment, or whatever else has made them.
type workload struct {
	namespace, name string // the name with its kind
	deployment      drain.Deployment
	of              types.NamespacedName // the Deployment
	replicas        int
	pods            map[types.UID]*pod
	users           map[*lostNode]bool
	count           drain.Workload
	counted         bool
	failing         string // why its ReplicaSet cannot make pods
	tally           *drain.Tally

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
	var pods []*corev1.Pod
	for _, p := range of.pods {
		pods = append(pods, p.Pod)
		if isReady(p.Pod) {
			of.ready++
		}
	}
	of.startup = w.in.Assumptions.Ready.Duration()
	if known, ok := w.in.Assumptions.ReadyOf[of.namespace+"/"+of.name]; ok {
		of.startup = known.Duration()
	}
	of.never = of.ready == 0 && slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		return p.Spec.NodeName != "" && w.now.Sub(scheduledAt(p)) > of.startup+lateStart
	})
	of.base, of.since = min(of.ready, max(of.replicas, 1)), w.now
	of.report = Workload{Namespace: of.namespace, Name: of.name, Replicas: of.replicas, Ready: of.ready, FewestReady: of.ready}
}

// account adds up what was missing since the last change.
func (of *workload) account(w *world) {
	of.report.UnavailablePodSeconds += float64(max(0, of.base-of.ready)) * w.now.Sub(of.since).Seconds()
	of.since, of.ready = w.now, 0
	for _, p := range of.pods {
		if isReady(p.Pod) {
			of.ready++
		}
	}
	if of.ready < of.report.FewestReady {
		of.report.FewestReady, of.report.At = of.ready, w.offset(w.now)
	}
}

// nameOf is a workload's name, such as deployment/web.
func nameOf(kind, name string) string { return strings.ToLower(kind) + "/" + name }

// WorkloadOf names what made a pod, as [Pod.Workload] does; empty if nothing did.
func WorkloadOf(p *corev1.Pod) string {
	kind, name := drain.WorkloadOf(p)
	if name == "" {
		return ""
	}
	return nameOf(kind, name)
}

// readyOf are the assumptions about single workloads that follow from the conditions of their pods.
func readyOf(pods []*corev1.Pod) map[string]Assumption {
	of := map[string][]*corev1.Pod{}
	for _, p := range pods {
		if name := WorkloadOf(p); name != "" && !drain.Finished(p) {
			of[p.Namespace+"/"+name] = append(of[p.Namespace+"/"+name], p)
		}
	}
	known := map[string]Assumption{}
	for name, pods := range of {
		if took, n, ok := startupOf(pods); ok {
			known[name] = Assume(took, fmt.Sprintf("history: %d of its pods", n))
		}
	}
	return known
}
