package main

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// object is a pointer to one of Kubernetes' objects.
type object interface {
	runtime.Object
	metav1.Object
}

// resource reads and writes the objects of one type, with the methods and the meaning of
// the generated clientset. client-go's own generic client, gentype, would do, but its fakes, in
// the same package, bring the schemas of OpenAPI: 32.3 MiB resident on every spot node instead
// of 30.3, where at most 32 are the goal.
type resource[T object] struct {
	client    rest.Interface
	name      string // as in the URL, such as pods
	namespace string // empty: of none, or of all
	empty     func() T
}

// newResource makes a resource of T, such as newResource[corev1.Pod].
func newResource[T any, P interface {
	*T
	object
}](client rest.Interface, name, namespace string) resource[P] {
	return resource[P]{client, name, namespace, func() P { return new(T) }}
}

// collection is a resource of which many are read at a time, as lists L.
type collection[T object, L runtime.Object] struct {
	resource[T]
	emptyList func() L
}

func (r resource[T]) of(request *rest.Request, opts runtime.Object) *rest.Request {
	return request.NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name).VersionedParams(opts, parameters)
}

func into[T runtime.Object](ctx context.Context, request *rest.Request, result T) (T, error) {
	return result, request.Do(ctx).Into(result)
}

// Get reads one object.
func (r resource[T]) Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error) {
	return into(ctx, r.of(r.client.Get(), &opts).Name(name), r.empty())
}

// Create makes an object.
func (r resource[T]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	return into(ctx, r.of(r.client.Post(), &opts).Body(obj), r.empty())
}

// Update replaces an object; it fails if that has changed since obj was read.
func (r resource[T]) Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return into(ctx, r.of(r.client.Put(), &opts).Name(obj.GetName()).Body(obj), r.empty())
}

// Patch changes an object.
func (r resource[T]) Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error) {
	return into(ctx, r.of(r.client.Patch(pt), &opts).Name(name).SubResource(subresources...).Body(data), r.empty())
}

// Delete deletes an object.
func (r resource[T]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return r.client.Delete().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name).Name(name).Body(&opts).Do(ctx).Error()
}

// Watch follows the objects that opts select.
func (r resource[T]) Watch(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
	opts.Watch = true
	return r.of(r.client.Get(), &opts).Timeout(serverTimeout(opts)).Watch(ctx)
}

// List reads the objects that opts select.
func (c collection[T, L]) List(ctx context.Context, opts metav1.ListOptions) (L, error) {
	return into(ctx, c.of(c.client.Get(), &opts).Timeout(serverTimeout(opts)), c.emptyList())
}

func serverTimeout(opts metav1.ListOptions) time.Duration {
	if opts.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*opts.TimeoutSeconds) * time.Second
}
