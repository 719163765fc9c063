package karpenter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"spot-handler/handler/provisioner"
)

// requests sums what the pods ask for, as the scheduler counts it, and the number
// of pods itself. A DaemonSet pod that would not fit the new node is counted all
// the same: some room too much is harmless, too little is a pod without a home.
func requests(n provisioner.Need) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, pods := range [][]*corev1.Pod{n.Moving, n.Daemons} {
		for _, pod := range pods {
			add(sum, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
		}
	}
	for name, q := range sum {
		if q.Sign() <= 0 {
			delete(sum, name)
		}
	}
	sum[corev1.ResourcePods] = *resource.NewQuantity(int64(len(n.Moving)+len(n.Daemons)), resource.DecimalSI)
	return sum
}

func add(sum, more corev1.ResourceList) {
	for name, q := range more {
		have := sum[name]
		have.Add(q)
		sum[name] = have
	}
}

// zones are the availability zones in which all moving pods can live, or nil where
// any will do or none suits all. here is the interrupted node's own zone, in which
// the volumes of its pods are: whether they can be attached elsewhere stands on the
// volume alone, so that a claim of a volume counts as bound.
func zones(n provisioner.Need, here string) []string {
	var common []string
	for _, pod := range n.Moving {
		for _, set := range podZones(pod, here) {
			if common == nil {
				common = set
			} else {
				common = intersect(common, set)
			}
			if len(common) == 0 {
				return nil
			}
		}
	}
	slices.Sort(common)
	return slices.Compact(common)
}

// podZones are sets of zones; the pod can live in what all of them hold.
func podZones(pod *corev1.Pod, here string) [][]string {
	var sets [][]string
	if zone := pod.Spec.NodeSelector[corev1.LabelTopologyZone]; zone != "" {
		sets = append(sets, []string{zone})
	}
	if here != "" && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil }) {
		sets = append(sets, []string{here})
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return sets
	}
	// One of the terms has to hold, so they bind only if each of them does.
	var union []string
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		zones := termZones(term)
		if zones == nil {
			return sets
		}
		union = append(union, zones...)
	}
	if len(union) > 0 {
		sets = append(sets, union)
	}
	return sets
}

// termZones are the zones that a term names, or nil where it names none.
func termZones(term corev1.NodeSelectorTerm) []string {
	var zones []string
	for _, e := range term.MatchExpressions {
		if e.Key != corev1.LabelTopologyZone || e.Operator != corev1.NodeSelectorOpIn {
			continue
		}
		if zones == nil {
			zones = slices.Clone(e.Values)
		} else {
			zones = intersect(zones, e.Values)
		}
	}
	return zones
}
