package karpenter

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"spot-handler/handler/provisioner"
)

// sumRequests adds up what the pods ask for, as the scheduler counts it, and the number of pods
// itself.
func sumRequests(n provisioner.Need) corev1.ResourceList {
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

// atLeast is the larger of each resource.
func atLeast(a, b corev1.ResourceList) corev1.ResourceList {
	most := a.DeepCopy()
	for name, q := range b {
		if have := most[name]; q.Cmp(have) > 0 {
			most[name] = q
		}
	}
	return most
}

// limitedPart is the part of the list that the pool limits.
func limitedPart(list corev1.ResourceList, pool *nodePool) corev1.ResourceList {
	part := corev1.ResourceList{}
	for name := range pool.Spec.Limits {
		if q, ok := list[name]; ok {
			part[name] = q
		}
	}
	return part
}
