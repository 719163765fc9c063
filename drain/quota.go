package drain

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	resourcehelper "k8s.io/component-helpers/resource"

	"spot-handler/drain/narrow"
)

// quota is what a ResourceQuota has left. Those with scopes are not among them: where one of
// these has no room, or where something else takes the last, the ReplicaSet's failure says so
// soon enough.
type quota struct {
	name string
	free corev1.ResourceList
}

func addQuota(to *Surroundings, u *unstructured.Unstructured) {
	if u.Object[narrow.CutKey] != nil {
		to.tooLarge = "ResourceQuota " + u.GetName() + " is larger than what is read of one"
		return
	}
	var object corev1.ResourceQuota
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err == nil {
		to.AddQuota(&object)
	}
}

// AddQuota adds a ResourceQuota.
func (s *Surroundings) AddQuota(object *corev1.ResourceQuota) {
	if len(object.Spec.Scopes) > 0 || object.Spec.ScopeSelector != nil {
		return
	}
	q := quota{object.Name, corev1.ResourceList{}}
	for name, free := range object.Status.Hard {
		free.Sub(object.Status.Used[name])
		q.free[name] = free
	}
	s.quotas = append(s.quotas, q)
}

// lacks names what the quota has too little of for a pod like this one, or is empty.
// https://kubernetes.io/docs/concepts/policy/resource-quotas/
func (q quota) lacks(pod *corev1.Pod) string {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	var short []string
	for name, free := range q.free {
		need := requests[corev1.ResourceName(strings.TrimPrefix(string(name), "requests."))]
		if limited, ok := strings.CutPrefix(string(name), "limits."); ok {
			need = limits[corev1.ResourceName(limited)]
		} else if name == corev1.ResourcePods || name == "count/pods" {
			need = *resource.NewQuantity(1, resource.DecimalSI)
		}
		if need.Sign() > 0 && need.Cmp(free) > 0 {
			short = append(short, string(name))
		}
	}
	slices.Sort(short)
	return strings.Join(short, ", ")
}

// Lacks says which quota has no room for one more such pod, or is empty.
func (s Surroundings) Lacks(pod *corev1.Pod) string {
	for _, q := range s.quotas {
		if short := q.lacks(pod); short != "" {
			return fmt.Sprintf("ResourceQuota %s has no room: %s", q.name, short)
		}
	}
	return ""
}
