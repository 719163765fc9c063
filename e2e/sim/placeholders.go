package sim

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"spot-handler/e2e/sim/memapi"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner/placeholder"
)

// What becomes of placeholders: the scheduler preempts them, the kubelet ends them in time, and the garbage collector
// removes them with their PodTemplates, and those with their Nodes.

// fallbackSelector selects the nodes of groups that take displaced pods.
const fallbackSelector = nodegroupLabel + "=" + PoolFallback

func isPlaceholder(pod *corev1.Pod) bool { return pod.Namespace == placeholder.Namespace }

// affine reports whether the pod may run on a node with these labels.
func affine(pod *corev1.Pod, node *corev1.Node) bool {
	if pod.Spec.Affinity == nil && pod.Spec.NodeSelector == nil {
		return true
	}
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && match
}

// preempt ends placeholders that are in a pod's way, on the node where the fewest are.
func (w *World) preempt(pod *corev1.Pod) (freed bool) {
	if isPlaceholder(pod) {
		return false
	}
	var victims []*corev1.Pod
	for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
		if !isOpen(node, pod) || !affine(pod, node) || !w.volumeFits(pod, node.Name) {
			continue
		}
		free, here := w.freeOn(node.Name)-cpuOf(pod), []*corev1.Pod(nil)
		for _, other := range w.podsOn(node.Name) {
			if free < 0 && isPlaceholder(other) && !memapi.Finished(other) && other.DeletionTimestamp == nil {
				free += cpuOf(other)
				here = append(here, other)
			}
		}
		if free >= 0 && len(here) > 0 && (victims == nil || len(here) < len(victims)) {
			victims = here
		}
	}
	for _, victim := range victims {
		w.note("scheduler: preempts %s for %s", victim.Name, pod.Name)
		w.Delete(memapi.Pods, memapi.Key(victim), nil, byScheduler)
	}
	return len(victims) > 0
}

// startPlaceholder is the kubelet's part of a placeholder.
func (w *World) startPlaceholder(pod *corev1.Pod) {
	w.after(w.draw().Between(100*time.Millisecond, 800*time.Millisecond, pod.Name, "starts"), "start "+string(pod.UID), func() {
		w.changePod(pod, byKubelet, func(p *corev1.Pod) {
			now := w.Now()
			p.Status.Phase, p.Status.StartTime = corev1.PodRunning, &now
		})
	})
	if limit := pod.Spec.ActiveDeadlineSeconds; limit != nil {
		w.after(time.Duration(*limit)*time.Second, "deadline "+string(pod.UID), func() {
			w.changePod(pod, byKubelet, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
		})
	}
}

// collectOrphans is the garbage collector, as far as placeholders go.
func (w *World) collectOrphans() {
	if !w.Scene.Groups.Placeholders {
		return
	}
	w.after(w.draw().Between(100*time.Millisecond, 3*time.Second, "gc", fmt.Sprint(w.Version())), "collect orphans", func() {
		owned := map[string]bool{}
		for _, node := range memapi.List[*corev1.Node](w.Server, memapi.Nodes) {
			owned[string(node.UID)] = true
		}
		for _, t := range memapi.List[*corev1.PodTemplate](w.Server, memapi.Templates) {
			if len(t.OwnerReferences) == 0 || !owned[string(t.OwnerReferences[0].UID)] {
				w.Remove(memapi.Templates, memapi.Key(t), byController)
				continue
			}
			owned[string(t.UID)] = true
		}
		for _, pod := range w.placeholders() {
			if len(pod.OwnerReferences) == 0 || !owned[string(pod.OwnerReferences[0].UID)] {
				w.Delete(memapi.Pods, memapi.Key(pod), nil, byController)
			}
		}
	})
}

func (w *World) placeholders() []*corev1.Pod {
	return slices.DeleteFunc(memapi.List[*corev1.Pod](w.Server, memapi.Pods), func(pod *corev1.Pod) bool { return !isPlaceholder(pod) })
}

// placeholderChanged holds the change of a placeholder to the invariants: there is one for a pod of an interrupted node.
func (j *judge) placeholderChanged(c memapi.Change) {
	before, _ := c.Before.(*corev1.Pod)
	after, _ := c.After.(*corev1.Pod)
	if after == nil || before != nil {
		return
	}
	node, of := after.Annotations["spot-handler/interrupted-node"], after.Annotations["spot-handler/holds-for"]
	j.w.note("%s: makes placeholder %s for %s", c.By, c.Key, of)
	if !j.noticed(node) {
		j.breaks(notOurs, "%s makes placeholder %s for %s, about which nobody has announced anything", c.By, c.Key, node)
	}
	key, noted := c.Key+" for "+of, false
	if of := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, node); of != nil {
		rec, _ := recordOf(of)
		key += " of " + rec.Event // one may be cancelled, and another follow
		noted = rec.Replacement != nil
	}
	// Until the record says that they were made, a process that got no answer, or the next leader, can't tell a
	// placeholder that was preempted from one that was never made.
	unknown := !noted && (len(j.w.faulty.spans) > 0 || j.w.Scene.Rates != Rates{})
	// A process that was told to retry later does so without looking again, and may have lost the Lease meanwhile.
	deposed := j.twoLead() && c.By != j.led
	if j.placeholders[key] && !unknown && !deposed {
		j.breaks(oneEach, "%s makes placeholder %s for %s again", c.By, c.Key, of)
	}
	j.placeholders[key] = true
}

// leftPlaceholders are those, and their PodTemplates, whose nodes are no longer interrupted, or gone.
func (j *judge) leftPlaceholders() (list []string) {
	over := func(node string) bool {
		n := memapi.Get[*corev1.Node](j.w.Server, memapi.Nodes, node)
		if n == nil {
			return true
		}
		rec, has := recordOf(n)
		return !has || rec.Phase == interruption.Released
	}
	for _, t := range memapi.List[*corev1.PodTemplate](j.w.Server, memapi.Templates) {
		if over(t.Annotations["spot-handler/interrupted-node"]) {
			list = append(list, "PodTemplate "+t.Name)
		}
	}
	for _, pod := range j.w.placeholders() {
		if over(pod.Annotations["spot-handler/interrupted-node"]) {
			list = append(list, "placeholder "+pod.Name)
		}
	}
	return list
}
