package drain

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
	"k8s.io/client-go/dynamic"

	"spot-handler/drain/narrow"
)

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

func addQuota(to *Surroundings, u *unstructured.Unstructured) {
	var object corev1.ResourceQuota
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err == nil {
		to.AddQuota(&object)
	}
}

var (
	deploymentResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	replicaSetResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
)
