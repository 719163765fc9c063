package controlplane

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// Create creates an object of any kind that client-go knows, with the client's permissions, and
// fills in what the API server returns.
func Create(ctx context.Context, client kubernetes.Interface, object runtime.Object) error {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return err
	}
	about, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	root := "/apis/" + resource.GroupVersion().String()
	if resource.Group == "" {
		root = "/api/" + resource.Version
	}
	// The client of one group speaks to all of them, as its path is replaced.
	err = client.CoreV1().RESTClient().Post().AbsPath(root).
		NamespaceIfScoped(about.GetNamespace(), about.GetNamespace() != "").Resource(resource.Resource).
		Body(object).Do(ctx).Into(object)
	if err != nil {
		return fmt.Errorf("create %s %s: %w", kinds[0].Kind, about.GetName(), err)
	}
	return nil
}
