package watch

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/plan"
)

var (
	claimResource     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

func readClaim(client dynamic.Interface) func(context.Context, types.NamespacedName) (plan.Claim, error) {
	return func(ctx context.Context, name types.NamespacedName) (plan.Claim, error) {
		u, err := readObject(ctx, client, claimResource, name)
		if u == nil {
			return plan.Claim{}, err // not shared, to be on the safe side
		}
		return claimOf(u), nil
	}
}

// readObject reads one from the API server's cache; nil if there is none, or it must not be read.
func readObject(ctx context.Context, client dynamic.Interface, kind schema.GroupVersionResource, name types.NamespacedName) (*unstructured.Unstructured, error) {
	u, err := client.Resource(kind).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{ResourceVersion: "0"})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %q: %w", kind.Resource, cache.ObjectName(name), err)
	}
	return u, nil
}

func claimOf(u *unstructured.Unstructured) plan.Claim {
	modes, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "accessModes")
	volume, _, _ := unstructured.NestedString(u.Object, "spec", "volumeName")
	return plan.Claim{Shared: plan.Shared(modes), Volume: volume}
}

// readPreferences reads what a namespace asks for its pods. One that must not be read asks nothing.
func readPreferences(client dynamic.Interface) func(context.Context, types.NamespacedName) (plan.Preferences, error) {
	return func(ctx context.Context, in types.NamespacedName) (plan.Preferences, error) {
		u, err := readObject(ctx, client, namespaceResource, types.NamespacedName{Name: in.Namespace})
		if u == nil {
			return plan.Preferences{}, err
		}
		return plan.PreferencesOf(u.GetAnnotations()), nil
	}
}
