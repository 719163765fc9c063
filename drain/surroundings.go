package drain

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Surroundings are what of a namespace decides whether its pods can be surged.
type Surroundings struct {
	adopters []adopter
	quotas   []quota
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

// readSurroundings reads those of a namespace, from the API server's cache.
func readSurroundings(client dynamic.Interface) func(context.Context, types.NamespacedName) (Surroundings, error) {
	return func(ctx context.Context, in types.NamespacedName) (Surroundings, error) {
		var found Surroundings
		for _, kind := range surrounding {
			list, err := client.Resource(kind.resource).Namespace(in.Namespace).List(ctx, metav1.ListOptions{LabelSelector: kind.selector, ResourceVersion: "0"})
			if apierrors.IsForbidden(err) {
				continue
			}
			if err != nil {
				return Surroundings{}, fmt.Errorf("list %s of namespace %q: %w", kind.resource.Resource, in.Namespace, err)
			}
			for i := range list.Items {
				kind.add(&found, &list.Items[i])
			}
		}
		return found, nil
	}
}
