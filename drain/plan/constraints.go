package plan

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Constraints are what of a namespace decides whether its pods can be surged.
type NamespaceConstraints struct {
	adopters []adopter
	quotas   []quota
	TooLarge string // why not all of them are known: then no pod of the namespace is surged
}

// adopter is a controller that adopts pods without an owner.
//
// A surged pod has none, and every controller of its namespace adopts such pods that its
// selector matches. One that has enough pods then deletes one, perhaps this one. Selectors
// overlap more often than one would think, as where a chart gives its DaemonSet and its
// Deployment the same labels, and nobody notices while all pods have owners.
//
// Only DaemonSets and bare ReplicaSets adopt any pod: a Deployment's ReplicaSets select by
// pod-template-hash, which the surge changes; a StatefulSet adopts by name; a Job's selector is
// its own, unless somebody has written it by hand; and ReplicationControllers are not worth a
// request of every drain.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/controller/controller_ref_manager.go
type adopter struct {
	name     string // with its kind
	selector labels.Selector
}

// AddAdopter adds a DaemonSet, or a bare ReplicaSet.
func (s *NamespaceConstraints) AddAdopter(kind, name string, by *metav1.LabelSelector, deleted bool) {
	if selector, err := metav1.LabelSelectorAsSelector(by); err == nil && !deleted {
		s.adopters = append(s.adopters, adopter{kind + " " + name, selector})
	}
}

// quota is what a ResourceQuota has left. Those with scopes are not among them: where one of
// these has no room, or where something else takes the last, the ReplicaSet's failure says so
// soon enough.
type quota struct {
	name string
	free corev1.ResourceList
}

// AddQuota adds a ResourceQuota.
func (s *NamespaceConstraints) AddQuota(object *corev1.ResourceQuota) {
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
