package watch

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"spot-handler/drain/plan"
)

var (
	claimResource     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	namespaceResource = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// lookUp reads a subject that is looked up.
func (c Clients) lookUp(ctx context.Context, s plan.Subject) (value any, err error) {
	switch s.Kind {
	case plan.PreferencesOfNamespace:
		return c.preferences(ctx, s.Name)
	case plan.ConstraintsOfNamespace:
		return c.constraints(ctx, s.Name)
	}
	return c.claim(ctx, s.Name)
}

// claim reads a PersistentVolumeClaim. One that must not be read is not shared, to be on the safe side.
func (c Clients) claim(ctx context.Context, name types.NamespacedName) (plan.Claim, error) {
	u, err := c.object(ctx, claimResource, name)
	if u == nil {
		return plan.Claim{}, err
	}
	return claimOf(u), nil
}

// object reads one from the API server's cache; nil if there is none, or it must not be read.
func (c Clients) object(
	ctx context.Context, kind schema.GroupVersionResource, name types.NamespacedName,
) (*unstructured.Unstructured, error) {
	u, err := c.Dynamic.Resource(kind).Namespace(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{ResourceVersion: "0"})
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

// preferences reads what a namespace asks for its pods. One that must not be read asks nothing.
func (c Clients) preferences(ctx context.Context, in types.NamespacedName) (plan.Preferences, error) {
	u, err := c.object(ctx, namespaceResource, types.NamespacedName{Name: in.Namespace})
	if u == nil {
		return plan.Preferences{}, err
	}
	return plan.PreferencesOf(u.GetAnnotations()), nil
}
