package drain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/handler/interruption"
)

// A successor can fail to find a place for as long as the surged pod runs: where both must not
// be in one zone, the pod keeps its successor off the replacement. Then the pod is better held,
// as it goes when the replacement is Ready. Whatever else keeps a successor from running, such
// as a lack of room or an image that cannot be pulled, would keep it from running after an
// eviction, too, so there the surged pod is the better one to have.

// placeFor is how long successors have to find a place once all replacements are Ready. The
// scheduler tries a pod again after 10 s at most when nodes have changed.
// https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins (podMaxBackoffSeconds)
const placeFor = 15 * time.Second

// findsNoPlace: its successor would have one if it were gone.
func findsNoPlace(p *planner, pod *corev1.Pod, d *Decision) (Action, string) {
	if !IsSurged(pod) || p.Capacity != ReadyCapacity || !keepsSuccessorsAway(pod) {
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
	return Return, "its successor finds no place while it runs"
}

// keepsSuccessorsAway reports whether the pod's own affinity or spread is about itself, over
// more than single nodes: its own node takes no pods in any case.
func keepsSuccessorsAway(pod *corev1.Pod) bool {
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
