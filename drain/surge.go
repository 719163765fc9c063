package drain

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/handler/interruption"
)

// A pod is surged in three steps. First its label pod-template-hash is changed: its
// ReplicaSet lets it go and makes a replacement pod, while Services and disruption budgets select
// by other labels and count it as before. Then the replacement pod becomes available. Then the
// pod is evicted. Until then, putting the label back undoes everything: the ReplicaSet takes
// the pod back and drops the replacement pod.

// SurgedLabel is the label of a pod that its ReplicaSet has been made to let go; its value
// is the pod's own pod-template-hash.
//
// The key begins like that label because network policy engines tell pods apart by their labels:
// a new key would make a new identity, which every agent of the cluster has to learn, and the
// pod would fall out of policies meanwhile. Cilium ignores keys that begin with
// pod-template-hash.
// https://github.com/cilium/cilium/blob/main/pkg/labelsfilter/filter.go
const SurgedLabel = "pod-template-hash.spot-handler/surged"

// SurgedAnnotation of such a pod tells the rest.
const SurgedAnnotation = "spot-handler/surged"

// hashLabel is how a Deployment's ReplicaSets tell their pods apart.
// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#pod-template-hash-label
const hashLabel = "pod-template-hash"

// IsSurged reports whether the pod's surge has begun.
func IsSurged(pod *corev1.Pod) bool { return pod.Labels[SurgedLabel] != "" }

// isNoLongerNeeded: its owner does not ask for it any more. No budget was ever asked about that.
func isNoLongerNeeded(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !IsSurged(pod) {
		return "", ""
	}
	workload, known := p.Workloads[d.workload]
	switch {
	case known && workload.Selector == nil:
		return Return, "its Deployment is gone"
	case p.take(d, End, workload.Excess):
		return End, fmt.Sprintf("Deployment %s has enough pods without it", d.workload.Name)
	}
	return "", ""
}

// isNotToBeSurged: without a replacement pod it is better held.
func isNotToBeSurged(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case !IsSurged(pod):
		return "", ""
	case pod.Labels[hashLabel] == pod.Labels[SurgedLabel]:
		return Return, "somebody has restored its " + hashLabel
	case p.take(d, Return, p.Workloads[d.workload].Lacking):
		return Return, "its Deployment " + p.Workloads[d.workload].Refuses
	}
	return "", ""
}

// isSurged: its replacement pod has to be available first.
func isSurged(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !IsSurged(pod) {
		return "", ""
	}
	workload := p.Workloads[d.workload]
	switch {
	case p.take(d, Evict, workload.Spare):
		return Evict, "its replacement pod is available"
	case p.Policy.Strategy == AtOnce:
		return "", ""
	}
	d.waits = true
	if workload.Refuses != "" {
		return Later, fmt.Sprintf("surged: waits for its replacement pod; Deployment %s %s", d.workload.Name, workload.Refuses)
	}
	return Later, "surged: waits for its replacement pod"
}

// isToBeSurged: the owner's maxSurge bounds how many are surged at a time.
func isToBeSurged(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	switch {
	case !d.Surge:
		return "", ""
	case !p.known(pod):
		return Later, "its Deployment is being looked up"
	case !p.take(d, SurgeNow, p.Workloads[d.workload].Slots):
		d.waits, d.Until = true, p.Review
		return Later, "waits for its turn: maxSurge of Deployment " + d.workload.Name + " is in use"
	}
	return SurgeNow, "its replacement pod is made first"
}

// take has the decision use one of the n that its Deployment has to give for the action, or
// reports that none remains.
func (p *planner) take(d *Decision, action Action, n int) bool {
	of := share{d.workload, action}
	if p.taken[of] >= n {
		return false
	}
	p.taken[of]++
	d.takes = true
	return true
}

// A replacement pod can fail to find a place for as long as the surged pod runs: where both must not
// be in one zone, the pod keeps its replacement pod off the replacement. Then the pod is better held,
// as it goes when the replacement is Ready. Whatever else keeps a replacement pod from running, such
// as a lack of room or an image that cannot be pulled, would keep it from running after an
// eviction, too, so there the surged pod is the better one to have.

// placeFor is how long replacement pods have to find a place once all replacements are Ready. The
// scheduler tries a pod again after 10 s at most when nodes have changed.
// https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins (podMaxBackoffSeconds)
const placeFor = 15 * time.Second

// findsNoPlace: its replacement pod would have one if it were gone.
func findsNoPlace(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !IsSurged(pod) || p.Capacity != ReadyCapacity || !keepsOthersAway(pod) {
		return "", ""
	}
	since := p.AllReady[d.workload]
	if since.IsZero() {
		since = p.now // look again later
	}
	since = interruption.Later(since, surgeNoteOf(pod).At)
	if by := since.Add(placeFor); p.now.Before(by) {
		d.Until = by
		return "", ""
	}
	if !p.take(d, Return, p.Workloads[d.workload].Unplaced) {
		return "", ""
	}
	return Return, "its replacement pod finds no place while it runs"
}

// keepsOthersAway reports whether the pod's own affinity or spread is about itself, over
// more than single nodes: its own node takes no pods in any case.
func keepsOthersAway(pod *corev1.Pod) bool {
	own := func(selector *metav1.LabelSelector, key string) bool {
		matches, err := metav1.LabelSelectorAsSelector(selector)
		return err == nil && key != corev1.LabelHostname && matches.Matches(labels.Set(pod.Labels))
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			if (len(term.Namespaces) == 0 || slices.Contains(term.Namespaces, pod.Namespace)) && own(term.LabelSelector, term.TopologyKey) {
				return true
			}
		}
	}
	return slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c corev1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == corev1.DoNotSchedule && own(c.LabelSelector, c.TopologyKey)
	})
}
