package watch

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/narrow"
	"spot-handler/drain/plan"
)

// constraintLists are the lists from which they are read. What must not be read does
// not count.
var constraintLists = []struct {
	resource schema.GroupVersionResource
	selector string
	add      func(*plan.NamespaceConstraints, *unstructured.Unstructured)
}{
	{replicaSetResource, "!" + plan.HashLabel, addAdopter},
	{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}, "", addAdopter},
	{schema.GroupVersionResource{Version: "v1", Resource: "resourcequotas"}, "", addQuota},
}

// How much is read of each list of one namespace, and how much is kept of it. A hundred ReplicaSets of
// 60 KiB are less than the one, the selectors of a thousand less than the other.
const (
	constraintsRead = 8 << 20
	constraintsKept = 256 << 10
)

// constraints reads those of a namespace, from the API server's cache.
func (c Clients) constraints(ctx context.Context, in types.NamespacedName) (plan.NamespaceConstraints, error) {
	var found plan.NamespaceConstraints
	ctx = narrow.Limit(ctx, constraintsRead, constraintsKept)
	for _, kind := range constraintLists {
		list, err := c.Dynamic.Resource(kind.resource).Namespace(in.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector:   kind.selector,
			ResourceVersion: "0",
		})
		if apierrors.IsForbidden(err) {
			continue
		}
		if errors.Is(err, narrow.ErrTooLong) {
			found.TooLarge = "its namespace has more " + kind.resource.Resource + " than are read"
			continue
		}
		if err != nil {
			return plan.NamespaceConstraints{}, fmt.Errorf("list %s of namespace %q: %w", kind.resource.Resource, in.Namespace, err)
		}
		for i := range list.Items {
			if u := &list.Items[i]; u.Object[narrow.CutKey] != nil {
				found.TooLarge = u.GetKind() + " " + u.GetName() + " is larger than what is read of one"
			} else {
				kind.add(&found, u)
			}
		}
	}
	return found, nil
}

func addAdopter(to *plan.NamespaceConstraints, u *unstructured.Unstructured) {
	var object struct {
		Spec struct {
			Selector *metav1.LabelSelector `json:"selector"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err == nil {
		to.AddAdopter(u.GetKind(), u.GetName(), object.Spec.Selector, u.GetDeletionTimestamp() != nil)
	}
}

func addQuota(to *plan.NamespaceConstraints, u *unstructured.Unstructured) {
	var object corev1.ResourceQuota
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err == nil {
		to.AddQuota(&object)
	}
}
