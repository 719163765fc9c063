package sim

import (
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/e2e/sim/memapi"
)

// lookForRoom is the scheduler. Who waits the longest goes first.
func (w *World) lookForRoom() {
	w.after(30*time.Millisecond, "schedule", func() {
		left := false
		waiting := w.podsOn("")
		slices.SortStableFunc(waiting, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
		for _, pod := range waiting {
			if pod.DeletionTimestamp != nil || memapi.Finished(pod) {
				continue
			}
			if node := w.nodeFor(pod); node != "" {
				w.changePod(pod, byScheduler, func(p *corev1.Pod) {
					p.Spec.NodeName = node
					p.Status.Conditions = []corev1.PodCondition{{
						Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: w.Now(),
					}}
				})
			} else {
				left = true
				w.preempt(pod)
			}
		}
		if left {
			w.provision()
		}
	})
}

// burden is what is on a node.
type burden struct {
	cpu, nonzeroMemory int64
	kin                int // pods of the same workload as the one that is placed
}

// assumedMemory is what the scheduler takes a container to need that requests no memory.
const assumedMemory = 200 << 20

// nodeFor is where a pod goes: of those with room, the one with the highest score of the default plugins.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/scheduler/apis/config/v1/default_plugins.go
func (w *World) nodeFor(pod *corev1.Pod) string {
	on := w.burdens(pod)
	var fit []*corev1.Node
	for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
		if !isOpen(node, pod) || !affine(pod, node) || !w.volumeFits(pod, node.Name) {
			continue
		}
		if on[node.Name].cpu+cpuOf(pod) <= node.Status.Allocatable.Cpu().MilliValue() {
			fit = append(fit, node)
		}
	}
	apart := w.spread(fit, on)
	var best []string
	most := math.Inf(-1)
	for i, node := range fit {
		score := math.Floor(allocation(node, on[node.Name], cpuOf(pod))) + 2*apart[i]
		if score > most {
			best, most = nil, score
		}
		if score == most {
			best = append(best, node.Name)
		}
	}
	if len(best) == 0 {
		return ""
	}
	return Pick(w.draw(), best, string(pod.UID), "node")
}

// burdens are those of all nodes, by name.
func (w *World) burdens(pod *corev1.Pod) map[string]burden {
	on, kin := map[string]burden{}, w.kinOf(pod)
	for _, other := range memapi.List[*corev1.Pod](w.Server, memapi.Pods) {
		if other.Spec.NodeName == "" || memapi.Finished(other) {
			continue
		}
		b := on[other.Spec.NodeName]
		b.cpu += cpuOf(other)
		b.nonzeroMemory += assumedMemory
		if kin != nil && other.DeletionTimestamp == nil && other.Namespace == pod.Namespace && memapi.Selects(kin, other) {
			b.kin++
		}
		on[other.Spec.NodeName] = b
	}
	return on
}

// kinOf selects the pods that a pod is spread with by default: those of its ReplicaSet or StatefulSet.
func (w *World) kinOf(pod *corev1.Pod) *metav1.LabelSelector {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return nil
	}
	key := pod.Namespace + "/" + owner.Name
	switch owner.Kind {
	case "ReplicaSet":
		if set := memapi.Get[*appsv1.ReplicaSet](w.Server, memapi.ReplicaSets, key); set != nil {
			return set.Spec.Selector
		}
	case "StatefulSet":
		if set := memapi.Get[*appsv1.StatefulSet](w.Server, memapi.Stateful, key); set != nil {
			return set.Spec.Selector
		}
	}
	return nil
}

// allocation is the score for what is left on a node, and for using processors and memory alike.
func allocation(node *corev1.Node, has burden, cpu int64) float64 {
	processors, memory := float64(node.Status.Allocatable.Cpu().MilliValue()), float64(node.Status.Allocatable.Memory().Value())
	used, filled := float64(has.cpu+cpu)/processors, float64(has.nonzeroMemory+assumedMemory)/memory
	least := 100 * (1 - used + max(0, 1-filled)) / 2
	balanced := 100 * (1 - used/2) // nobody requests memory
	return least + balanced
}

// spread is the score of each node for keeping the pods of a workload apart, on nodes and in zones.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/scheduler/framework/plugins/podtopologyspread/scoring.go
func (w *World) spread(fit []*corev1.Node, on map[string]burden) []float64 {
	inZone, zones := map[string]int{}, map[string]bool{}
	for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
		inZone[node.Labels[corev1.LabelTopologyZone]] += on[node.Name].kin
	}
	for _, node := range fit {
		zones[node.Labels[corev1.LabelTopologyZone]] = true
	}
	scores := make([]float64, len(fit))
	least, most := math.Inf(1), 0.0
	for i, node := range fit {
		host, zone := float64(on[node.Name].kin), float64(inZone[node.Labels[corev1.LabelTopologyZone]])
		scores[i] = math.Round(host*math.Log(float64(len(fit)+2)) + 2 + zone*math.Log(float64(len(zones)+2)) + 4)
		least, most = min(least, scores[i]), max(most, scores[i])
	}
	for i := range scores {
		scores[i] = math.Floor(100 * (most + least - scores[i]) / most)
	}
	return scores
}

// isOpen reports whether the node's marks let the scheduler place the pod on it. A cordon is also a taint, and so is
// Karpenter's mark on a node that it is removing.
func isOpen(node *corev1.Node, pod *corev1.Pod) bool {
	if !isReady(node) || node.DeletionTimestamp != nil {
		return false
	}
	closed := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule })
	return !node.Spec.Unschedulable && !closed || toleratesAll(pod)
}

func toleratesAll(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Key == "" && t.Effect == "" && t.Operator == corev1.TolerationOpExists
	})
}

// volumeFits: a volume of one node has to be detached first.
func (w *World) volumeFits(pod *corev1.Pod, node string) bool {
	if len(pod.Spec.Volumes) == 0 {
		return true
	}
	at := memapi.Get[attachment](w.Server, memapi.Attachments, "va-"+pod.Name)
	return at == nil || at.Spec.NodeName == node
}
