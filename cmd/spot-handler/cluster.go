package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"spot-handler/drain/narrow"
	"spot-handler/handler/dryrun"
)

// The client is put together from client-go's generic parts for the four API groups
// that the program uses. The generated clientset registers all fifty, which makes the program
// 38 MB large instead of 27. Most of that would be in memory on every spot node.
var (
	scheme     = runtime.NewScheme()
	codecs     = serializer.NewCodecFactory(scheme).WithoutConversion()
	parameters = runtime.NewParameterCodec(scheme)
)

func init() {
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, policyv1.AddToScheme, coordinationv1.AddToScheme, authorizationv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // two types of one name: cannot happen outside a broken build
		}
	}
}

// clients are the APIs that the program uses, over one connection.
type clients struct {
	core, policy rest.Interface
	reviews      rest.Interface // of permissions
	nodes        resource[*corev1.Node, *corev1.NodeList]
	pods         resource[*corev1.Pod, *corev1.PodList] // of all namespaces
	dynamic      *dynamic.DynamicClient                 // Karpenter's objects have no protobuf form
}

// connect makes clients that see as much of large objects as is used, read by narrow.Transport or
// narrow.Slowly. It makes no call.
func connect(conf *rest.Config, by transport.WrapperFunc) (*clients, error) {
	conf = rest.CopyConfig(conf)
	conf.Wrap(by)
	return connectWhole(conf)
}

// connectDaemon makes the clients of a daemon. Those of a dry run cannot change the cluster: the API
// server gets no more from them than reads and questions about permissions. It makes no call.
func connectDaemon(conf *rest.Config, cfg settings) (*clients, error) {
	all, err := connect(conf, narrow.Slowly)
	if err != nil || !cfg.dryRun {
		return all, err
	}
	dry, err := connectDry(conf, narrow.Slowly, func(next http.RoundTripper) http.RoundTripper {
		return dryrun.Transport(next, nil)
	})
	if err != nil {
		return nil, err
	}
	dry.reviews = all.reviews
	return dry, nil
}

// connectDry is connect over a transport that changes nothing. It makes no call.
func connectDry(conf *rest.Config, by, dry transport.WrapperFunc) (*clients, error) {
	conf = rest.CopyConfig(conf)
	conf.Wrap(dry)
	conf.ContentType = runtime.ContentTypeJSON
	return connect(conf, by)
}

// connectWhole makes clients that see objects as they are. It makes no call.
func connectWhole(conf *rest.Config) (*clients, error) {
	client, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	core, errCore := newGroup(conf, corev1.SchemeGroupVersion, client)
	policy, errPolicy := newGroup(conf, policyv1.SchemeGroupVersion, client)
	reviews, errReviews := newGroup(conf, authorizationv1.SchemeGroupVersion, client)
	untyped, errDynamic := dynamic.NewForConfigAndClient(conf, client)
	if err := errors.Join(errCore, errPolicy, errReviews, errDynamic); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	return &clients{
		core: core, policy: policy, reviews: reviews, dynamic: untyped,
		nodes: newResource[corev1.Node, corev1.NodeList](core, "nodes", metav1.NamespaceNone),
		pods:  newResource[corev1.Pod, corev1.PodList](core, "pods", metav1.NamespaceAll),
	}, nil
}

// newLeases makes the client of the lease, with a connection of its own, on which a burst is not in
// its way. It is one of HTTP/1, as a request that hangs there takes its connection with it, and the
// next attempt has a new one.
func newLeases(conf *rest.Config, namespace string) (leases resource[*coordinationv1.Lease, *coordinationv1.LeaseList], err error) {
	conf = rest.CopyConfig(conf)
	conf.Dial = (&net.Dialer{Timeout: leaseDialTimeout}).DialContext
	conf.NextProtos = []string{"http/1.1"}
	transport, err := rest.HTTPClientFor(conf)
	if err != nil {
		return leases, fmt.Errorf("connect to cluster: %w", err)
	}
	coordination, err := newGroup(conf, coordinationv1.SchemeGroupVersion, transport)
	if err != nil {
		return leases, fmt.Errorf("connect to cluster: %w", err)
	}
	return newResource[coordinationv1.Lease, coordinationv1.LeaseList](coordination, "leases", namespace), nil
}

// caller is the cluster as the user of a command may see it, by their kubeconfig.
type caller struct {
	*clients
	whole *clients // which see objects as they are
	conf  *rest.Config

	daemonNamespace string // as the operator named it
}

// newCaller makes no call.
func newCaller(conf *rest.Config) (*caller, error) {
	seen, errSeen := connect(conf, narrow.Transport)
	whole, errWhole := connectWhole(conf)
	return &caller{clients: seen, whole: whole, conf: conf}, errors.Join(errSeen, errWhole)
}

// leaseDialTimeout leaves time for another attempt within renewDeadline.
const leaseDialTimeout = 2 * time.Second

func newGroup(conf *rest.Config, gv schema.GroupVersion, transport *http.Client) (*rest.RESTClient, error) {
	conf = rest.CopyConfig(conf)
	conf.GroupVersion, conf.APIPath = &gv, "/apis"
	if gv.Group == "" {
		conf.APIPath = "/api"
	}
	conf.NegotiatedSerializer = codecs
	conf.ContentType = cmp.Or(conf.ContentType, runtime.ContentTypeProtobuf)
	conf.AcceptContentTypes = cmp.Or(conf.AcceptContentTypes, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
	return rest.RESTClientForConfigAndClient(conf, transport)
}

// restConfig finds the cluster by the flag, else as a pod does.
func restConfig(cfg settings) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.kubeconfig}
	conf, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%w: no cluster: --kubeconfig (%s, KUBECONFIG) is %q, and this is not a pod: %w",
			errUsage, variable("kubeconfig"), cfg.kubeconfig, err)
	}
	return paced(conf, "spot-handler"), nil
}

// paced leaves the pace to the server's priority and fairness, which sees the program by this name.
func paced(conf *rest.Config, name string) *rest.Config {
	conf.UserAgent = name + "/" + version
	conf.QPS, conf.Burst = -1, 0
	return conf
}

// object is a pointer to one of Kubernetes' objects.
type object interface {
	runtime.Object
	metav1.Object
}

// resource reads and writes the objects of one type, and lists of them, with the methods and the
// meaning of the generated clientset. client-go's own generic client, gentype, would do, but for its
// fakes: in the same package, they bring the schemas of OpenAPI, which would take memory on every spot
// node (performance.md).
type resource[T object, L runtime.Object] struct {
	client    rest.Interface
	name      string // as in the URL, such as pods
	namespace string // empty: of none, or of all
	empty     func() T
	emptyList func() L
}

// newResource makes a resource, such as newResource[corev1.Pod, corev1.PodList].
func newResource[T, L any, P interface {
	*T
	object
}, Q interface {
	*L
	runtime.Object
}](client rest.Interface, name, namespace string) resource[P, Q] {
	return resource[P, Q]{client, name, namespace, func() P { return new(T) }, func() Q { return new(L) }}
}

func (r resource[T, L]) of(request *rest.Request, opts runtime.Object) *rest.Request {
	return request.NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name).VersionedParams(opts, parameters)
}

func into[T runtime.Object](ctx context.Context, request *rest.Request, result T) (T, error) {
	return result, request.Do(ctx).Into(result)
}

// Get reads one object.
func (r resource[T, L]) Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error) {
	return into(ctx, r.of(r.client.Get(), &opts).Name(name), r.empty())
}

// Create makes an object.
func (r resource[T, L]) Create(ctx context.Context, obj T, opts metav1.CreateOptions) (T, error) {
	return into(ctx, r.of(r.client.Post(), &opts).Body(obj), r.empty())
}

// Update replaces an object; it fails if that has changed since obj was read.
func (r resource[T, L]) Update(ctx context.Context, obj T, opts metav1.UpdateOptions) (T, error) {
	return into(ctx, r.of(r.client.Put(), &opts).Name(obj.GetName()).Body(obj), r.empty())
}

// Patch changes an object.
func (r resource[T, L]) Patch(
	ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string,
) (T, error) {
	return into(ctx, r.of(r.client.Patch(pt), &opts).Name(name).SubResource(subresources...).Body(data), r.empty())
}

// metadataOnly is the form of an answer that leaves out all but an object's metadata.
const metadataOnly = runtime.ContentTypeJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// Mark changes an object, and reads nothing of what it is then: in a burst that is processor time of the
// API server, too.
func (r resource[T, L]) Mark(ctx context.Context, name string, pt types.PatchType, data []byte) error {
	return r.of(r.client.Patch(pt), &metav1.PatchOptions{}).Name(name).SetHeader("Accept", metadataOnly).Body(data).Do(ctx).Error()
}

// Delete deletes an object.
func (r resource[T, L]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return r.client.Delete().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name).Name(name).Body(&opts).Do(ctx).Error()
}

// Watch follows the objects that opts select.
func (r resource[T, L]) Watch(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
	opts.Watch = true
	return r.of(r.client.Get(), &opts).Watch(ctx)
}

// List reads the objects that opts select.
func (r resource[T, L]) List(ctx context.Context, opts metav1.ListOptions) (L, error) {
	return into(ctx, r.of(r.client.Get(), &opts), r.emptyList())
}
