package plan

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain"
	"spot-handler/handler/provisioner/room"
)

// take subtracts what a pod requests from what is free.
func (n *node) take(p *pod) {
	n.pods[p.UID] = p
	n.free.Take(room.Requests(p.Pod))
}

// release undoes take.
func (n *node) release(p *pod) {
	if n.pods[p.UID] != nil {
		delete(n.pods, p.UID)
		n.free.GiveBack(room.Requests(p.Pod))
	}
}

// schedule has the scheduler look for places.
func (w *world) schedule() {
	if w.scheduling || len(w.waiting) == 0 {
		return
	}
	w.scheduling = true
	w.at(w.now, thenScheduler, func() {
		w.scheduling = false
		w.place()
	})
}

// place gives a node to every waiting pod that has a place, the most important and the oldest
// first.
func (w *world) place() {
	slices.SortStableFunc(w.waiting, func(a, b *pod) int { return cmp.Compare(priority(b), priority(a)) })
	var still []*pod
	full := map[*controller]bool{} // for whose pods there is no place: each pod that gets one leaves less
	for _, p := range w.waiting {
		alike := p.controller != nil && p.Spec.Affinity == nil && len(p.Spec.TopologySpreadConstraints)+len(p.Spec.Volumes) == 0
		if alike && full[p.controller] {
			still = append(still, p)
			continue
		}
		if n := w.best(p); n != nil {
			w.bind(p, n)
			continue
		}
		full[p.controller] = alike
		still = append(still, p)
	}
	w.waiting = still
	for _, p := range still {
		if c := condition(p.Pod, corev1.PodScheduled); c == nil || c.Reason != corev1.PodReasonUnschedulable {
			w.show(p, with(p.Pod, corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, w.now))
		}
	}
}

func priority(p *pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// bind starts the pod on the node. Volumes that another node has have to be detached there first.
func (w *world) bind(p *pod, n *node) {
	p.node = n
	next := with(p.Pod, corev1.PodScheduled, corev1.ConditionTrue, "", w.now)
	next.Spec.NodeName, next.Status.Phase = n.Name, corev1.PodRunning
	n.take(&pod{Pod: next})
	n.pods[p.UID] = p
	took := p.startup(w)
	if len(w.in.Attached) > 0 && drain.HasVolumes(next) {
		took += w.in.Assumptions.Detach.Duration()
	}
	if !p.workload.neverReady() {
		w.at(w.now.Add(took), podsFirst, func() { w.becomesReady(p) })
	}
	w.show(p, next)
}

// best is the node with the most room of those where the pod may run.
func (w *world) best(p *pod) *node {
	requests := room.Requests(p.Pod)
	var best *node
	score := 0.0
	among, suits := w.amongOf(p), room.Suits(p.Pod)
	for _, n := range w.nodes {
		if n.closed && !(toleratesAll(p.Pod) && w.isLost(n)) || !n.free.Holds(requests) || !w.inZone(p.Pod, n) || !suits(n.Node) || !among.allow(n) {
			continue
		}
		if s := n.roomLeft(requests); best == nil || s > score || s == score && n.Name < best.Name {
			best, score = n, s
		}
	}
	return best
}

// roomLeft is the part of processors and memory that is free once the pod is there, as the scheduler
// prefers by default.
func (n *node) roomLeft(requests corev1.ResourceList) float64 {
	sum := 0.0
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		all, left, q := n.Status.Allocatable[name], n.free[name], requests[name]
		if a := all.AsApproximateFloat64(); a > 0 {
			sum += (left.AsApproximateFloat64() - q.AsApproximateFloat64()) / a
		}
	}
	return sum
}

// inZone reports whether the pod's volumes can be attached to the node.
func (w *world) inZone(p *corev1.Pod, n *node) bool {
	return !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		if v.PersistentVolumeClaim == nil {
			return false
		}
		zone := w.in.Zones[types.NamespacedName{Namespace: p.Namespace, Name: v.PersistentVolumeClaim.ClaimName}]
		return zone != "" && zone != n.Labels[corev1.LabelTopologyZone]
	})
}

func (w *world) isLost(n *node) bool {
	return slices.ContainsFunc(w.lost, func(l *lostNode) bool { return l.node == n && !l.dead })
}

// toleratesAll reports whether the pod tolerates every taint that keeps pods off nodes.
func toleratesAll(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Key == "" && t.Operator == corev1.TolerationOpExists && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
	})
}
