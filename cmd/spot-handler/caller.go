package main

import (
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/console"
)

// caller is the cluster as whoever runs a command may see it, by their kubeconfig.
type caller struct {
	conf         *rest.Config
	core         rest.Interface // for lists that are read object by object
	nodes        collection[*corev1.Node, *corev1.NodeList]
	podsIn       func(namespace string) collection[*corev1.Pod, *corev1.PodList]
	podTemplates func(namespace string) resource[*corev1.PodTemplate]
	dynamic      dynamic.Interface
	// seen shows as much as the daemon sees, which bounds what a tenant's objects take.
	seen struct {
		core, policy rest.Interface
		dynamic      dynamic.Interface
	}

	daemonNamespace string // as the operator named it
}

func connectCaller(cluster console.Cluster) (*caller, error) {
	newLogger(io.Discard, "error", logJSON) // what client-go says to itself is no answer to a question
	conf, err := cluster.Config("spot-handler-command/" + version)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	c, err := newCaller(conf)
	if err == nil {
		c.daemonNamespace = cluster.DaemonNamespace
	}
	return c, err
}

// newCaller makes no call.
func newCaller(conf *rest.Config) (*caller, error) {
	transport, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	c := &caller{conf: conf}
	if c.core, err = newGroup(conf, corev1.SchemeGroupVersion, transport); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(conf, transport); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	seen := rest.CopyConfig(conf)
	narrowed(seen)
	if transport, err = rest.HTTPClientFor(seen); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	for _, group := range []struct {
		gv     schema.GroupVersion
		client *rest.Interface
	}{{corev1.SchemeGroupVersion, &c.seen.core}, {policyv1.SchemeGroupVersion, &c.seen.policy}} {
		if *group.client, err = newGroup(seen, group.gv, transport); err != nil {
			return nil, fmt.Errorf("connect to cluster: %w", err)
		}
	}
	if c.seen.dynamic, err = dynamic.NewForConfigAndClient(seen, transport); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	c.nodes = collection[*corev1.Node, *corev1.NodeList]{
		newResource[corev1.Node](c.core, "nodes", metav1.NamespaceNone), func() *corev1.NodeList { return &corev1.NodeList{} },
	}
	c.podsIn = func(namespace string) collection[*corev1.Pod, *corev1.PodList] {
		return collection[*corev1.Pod, *corev1.PodList]{newResource[corev1.Pod](c.seen.core, "pods", namespace), func() *corev1.PodList { return &corev1.PodList{} }}
	}
	c.podTemplates = func(namespace string) resource[*corev1.PodTemplate] {
		return newResource[corev1.PodTemplate](c.core, "podtemplates", namespace)
	}
	return c, nil
}
