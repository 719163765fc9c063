package main

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"spot-handler/drain/narrow"
)

// The client is put together from client-go's generic parts for the four API groups
// that the program uses. The generated clientset registers all of the fifty: with the leader
// election that is built on it, an idle process in imds mode has 38 MiB resident instead of
// 30, on every spot node, where at most 32 are the goal.
var (
	scheme     = runtime.NewScheme()
	codecs     = serializer.NewCodecFactory(scheme)
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
	nodes        collection[*corev1.Node, *corev1.NodeList]
	pods         collection[*corev1.Pod, *corev1.PodList] // of all namespaces
	podsIn       func(namespace string) collection[*corev1.Pod, *corev1.PodList]
	podTemplates func(namespace string) resource[*corev1.PodTemplate]
	leases       func(namespace string) resource[*coordinationv1.Lease]
	reviews      resource[*authorizationv1.SelfSubjectAccessReview]
	dynamic      *dynamic.DynamicClient
}

func newClients(cfg config) (*clients, error) {
	conf, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	if err := noticeDeadConnections(); err != nil {
		return nil, err
	}
	narrowed(conf)
	transport, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	group := func(gv schema.GroupVersion) *rest.RESTClient {
		client, groupErr := newGroup(conf, gv, transport)
		if groupErr != nil {
			err = groupErr
		}
		return client
	}
	core, policy, authorization := group(corev1.SchemeGroupVersion), group(policyv1.SchemeGroupVersion), group(authorizationv1.SchemeGroupVersion)
	// The lease has a connection of its own, on which a burst is not in its way. It is one of
	// HTTP/1, as a request that hangs there takes its connection with it, and the next attempt
	// has a new one.
	alone := rest.CopyConfig(conf)
	alone.Dial = (&net.Dialer{Timeout: leaseDialTimeout}).DialContext
	alone.NextProtos = []string{"http/1.1"}
	if transport, err = rest.HTTPClientFor(alone); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	coordination := group(coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	podsIn := func(namespace string) collection[*corev1.Pod, *corev1.PodList] {
		return collection[*corev1.Pod, *corev1.PodList]{newResource[corev1.Pod](core, "pods", namespace), func() *corev1.PodList { return &corev1.PodList{} }}
	}
	c := &clients{
		core: core, policy: policy,
		nodes: collection[*corev1.Node, *corev1.NodeList]{newResource[corev1.Node](core, "nodes", metav1.NamespaceNone), func() *corev1.NodeList { return &corev1.NodeList{} }},
		pods:  podsIn(metav1.NamespaceAll), podsIn: podsIn,
		podTemplates: func(namespace string) resource[*corev1.PodTemplate] {
			return newResource[corev1.PodTemplate](core, "podtemplates", namespace)
		},
		leases: func(namespace string) resource[*coordinationv1.Lease] {
			return newResource[coordinationv1.Lease](coordination, "leases", namespace)
		},
		reviews: newResource[authorizationv1.SelfSubjectAccessReview](authorization, "selfsubjectaccessreviews", metav1.NamespaceNone),
	}
	// Karpenter's objects have no protobuf form; the dynamic client speaks JSON.
	if c.dynamic, err = dynamic.NewForConfig(conf); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	return c, nil
}

// narrowed has clients see as much of large objects as is used.
func narrowed(conf *rest.Config) {
	conf.Wrap(narrow.Transport)
	conf.AcceptContentTypes = runtime.ContentTypeJSON // it reads no other
}

// leaseDialTimeout leaves time for another attempt within renewDeadline.
const leaseDialTimeout = 2 * time.Second

// pings are how long a connection to the API server may be silent before it is asked whether
// it lives, and how long the answer may take, in seconds. Until then requests wait on one
// that has died without a word, as when the host of an API server is lost: by default for 45 s
// of the 120.
var pings = map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"}

// noticeDeadConnections sets pings, where the operator has not. The environment is the only
// place in which client-go looks for them.
func noticeDeadConnections() error {
	for name, seconds := range pings {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, seconds); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

func newGroup(conf *rest.Config, gv schema.GroupVersion, transport *http.Client) (*rest.RESTClient, error) {
	conf = rest.CopyConfig(conf)
	conf.GroupVersion, conf.APIPath = &gv, "/apis"
	if gv.Group == "" {
		conf.APIPath = "/api"
	}
	conf.NegotiatedSerializer = codecs.WithoutConversion()
	conf.ContentType = runtime.ContentTypeProtobuf
	conf.AcceptContentTypes = cmp.Or(conf.AcceptContentTypes, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON)
	return rest.RESTClientForConfigAndClient(conf, transport)
}

// restConfig finds the cluster by the flag, else as a pod does.
func restConfig(cfg config) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.kubeconfig}
	conf, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%w: no cluster: --kubeconfig (%s, KUBECONFIG) is %q, and this is not a pod: %w",
			errUsage, variable("kubeconfig"), cfg.kubeconfig, err)
	}
	conf.UserAgent = "spot-handler/" + version
	conf.QPS, conf.Burst = -1, 0 // the server's priority and fairness sets the pace
	return conf, nil
}
