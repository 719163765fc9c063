package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"

	"spot-handler/drain/narrow"
)

// Surroundings are what of a namespace decides whether its pods can be surged.
type Surroundings struct {
	adopters []adopter
	quotas   []quota
	tooLarge string // why not all of them are known: then no pod of the namespace is surged
}

// surrounding are the lists from which they are read. What must not be read does
// not count.
var surrounding = []struct {
	resource schema.GroupVersionResource
	selector string
	add      func(*Surroundings, *unstructured.Unstructured)
}{
	{replicaSetResource, "!" + hashLabel, addAdopter},
	{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}, "", addAdopter},
	{schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}, "", addQuota},
}

// How much is read of each list of one namespace, and how much is kept of it. A hundred ReplicaSets of
// 60 KiB are less than the one, the selectors of a thousand less than the other.
const (
	surroundingRead = 8 << 20
	surroundingKept = 256 << 10
)

// readSurroundings reads those of a namespace, from the API server's cache.
func readSurroundings(client dynamic.Interface) func(context.Context, types.NamespacedName) (Surroundings, error) {
	return func(ctx context.Context, in types.NamespacedName) (Surroundings, error) {
		var found Surroundings
		ctx = narrow.Limit(ctx, surroundingRead, surroundingKept)
		for _, kind := range surrounding {
			list, err := client.Resource(kind.resource).Namespace(in.Namespace).List(ctx, metav1.ListOptions{LabelSelector: kind.selector, ResourceVersion: "0"})
			if apierrors.IsForbidden(err) {
				continue
			}
			if errors.Is(err, narrow.ErrTooLong) {
				found.tooLarge = "its namespace has more " + kind.resource.Resource + " than are read"
				continue
			}
			if err != nil {
				return Surroundings{}, fmt.Errorf("list %s of namespace %q: %w", kind.resource.Resource, in.Namespace, err)
			}
			for i := range list.Items {
				if u := &list.Items[i]; u.Object[narrow.CutKey] != nil {
					found.tooLarge = u.GetKind() + " " + u.GetName() + " is larger than what is read of one"
				} else {
					kind.add(&found, u)
				}
			}
		}
		return found, nil
	}
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

func addAdopter(to *Surroundings, u *unstructured.Unstructured) {
	var object struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err == nil {
		to.AddAdopter(u.GetKind(), u.GetName(), object.Spec.Selector, u.GetDeletionTimestamp() != nil)
	}
}

// AddAdopter adds a DaemonSet, or a bare ReplicaSet.
func (s *Surroundings) AddAdopter(kind, name string, by *metav1.LabelSelector, deleted bool) {
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

func addQuota(to *Surroundings, u *unstructured.Unstructured) {
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

var (
	deploymentResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	replicaSetResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
)

// Deployment is the part of a Deployment that a surge depends on. The whole type would link
// all of its API group into a process that has to stay small, as it runs on every node.
type Deployment struct {
	metav1.ObjectMeta `json:"metadata"`
	Cut               bool `json:"spotHandlerCut"` // see narrow.CutKey
	Spec              struct {
		Replicas        *int32                `json:"replicas"`
		Paused          bool                  `json:"paused"`
		MinReadySeconds int32                 `json:"minReadySeconds"`
		Selector        *metav1.LabelSelector `json:"selector"`
		Strategy        struct {
			Type          string `json:"type"`
			RollingUpdate *struct {
				MaxSurge *intstr.IntOrString `json:"maxSurge"`
			} `json:"rollingUpdate"`
		} `json:"strategy"`
	} `json:"spec"`
	Status struct {
		ObservedGeneration int64                 `json:"observedGeneration"`
		Replicas           int32                 `json:"replicas"`
		UpdatedReplicas    int32                 `json:"updatedReplicas"`
		Conditions         []deploymentCondition `json:"conditions"`
	} `json:"status"`
}

// replicaFailure is the condition of a Deployment whose pods cannot be made.
const replicaFailure = "ReplicaFailure"

type deploymentCondition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Message string `json:"message"`
}

// asDeployment drops the rest of it. Of one that cannot be read it keeps the metadata.
func asDeployment(u *unstructured.Unstructured) *Deployment {
	d := &Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, d); err != nil {
		return &Deployment{ObjectMeta: metav1.ObjectMeta{
			Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(),
		}}
	}
	return d
}

// unreadable says why nothing can be planned with the Deployment; nil if it can.
func (d *Deployment) unreadable() error {
	_, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	switch {
	case d.Cut:
		return errors.New("it is larger than what is read of one")
	case d.Spec.Selector == nil: // the API demands one
		return errors.New("it is not as the API describes it")
	}
	return err
}

// Replicas is how many pods it asks for.
func (d *Deployment) Replicas() int { return int(ptr.Deref(d.Spec.Replicas, 1)) }

// maxSurge is how many pods the Deployment may have above its replicas while it rolls:
// its owner's consent to as many replacement pods at a time. A percentage is rounded up.
// https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#max-surge
func (d *Deployment) maxSurge() int {
	if d.Spec.Strategy.Type != "RollingUpdate" || d.Spec.Strategy.RollingUpdate == nil || d.Spec.Strategy.RollingUpdate.MaxSurge == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(d.Spec.Strategy.RollingUpdate.MaxSurge, d.Replicas(), true)
	if err != nil {
		return 0
	}
	return n
}

// forbids says why the owner does not let pods of the Deployment be surged, or is empty.
func (d *Deployment) forbids() string {
	switch {
	case d.Cut:
		return "is larger than what is read of one"
	case d.Spec.Strategy.Type != "RollingUpdate":
		return "has the strategy " + d.Spec.Strategy.Type
	case d.maxSurge() <= 0:
		return "has maxSurge 0"
	case d.Spec.Paused:
		return "is paused"
	}
	return ""
}

// refuses says why pods of the Deployment cannot be surged now, or is empty.
func (d *Deployment) refuses() string {
	if why := d.forbids(); why != "" {
		return why
	}
	switch {
	case d.Status.ObservedGeneration < d.Generation, d.Status.UpdatedReplicas < d.Status.Replicas:
		return "is being rolled out"
	}
	return d.failure()
}

// failure says why pods of the Deployment cannot be made, such as for a quota, or is empty.
func (d *Deployment) failure() string {
	for _, c := range d.Status.Conditions {
		if c.Type == replicaFailure && c.Status == "True" {
			return "cannot make pods: " + c.Message
		}
	}
	return ""
}

// Specified is the part of a Workload that the specification alone decides: the selector, and why
// the owner does not let pods be surged.
func (d *Deployment) Specified() (Workload, error) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	return Workload{Selector: selector, Refuses: d.forbids()}, err
}
