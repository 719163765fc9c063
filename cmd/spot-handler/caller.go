package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/drain/narrow"
)

// caller is the cluster as whoever runs a command may see it, by their kubeconfig.
type caller struct {
	conf         *rest.Config
	core, policy rest.Interface
	nodes        collection[*corev1.Node, *corev1.NodeList]
	podsIn       func(namespace string) collection[*corev1.Pod, *corev1.PodList]
	podTemplates func(namespace string) resource[*corev1.PodTemplate]
	reviews      resource[*authorizationv1.SelfSubjectAccessReview]
	dynamic      dynamic.Interface
	narrowed     dynamic.Interface // shows as much as the daemon sees
}

func connectCaller(cluster console.Cluster) (*caller, error) {
	newLogger(io.Discard, "error", logJSON) // what client-go says to itself is no answer to a question
	conf, err := cluster.Config("spot-handler-command/" + version)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return newCaller(conf)
}

// newCaller makes no call.
func newCaller(conf *rest.Config) (*caller, error) {
	transport, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	c := &caller{conf: conf}
	var authorization rest.Interface
	for _, group := range []struct {
		gv     schema.GroupVersion
		client *rest.Interface
	}{{corev1.SchemeGroupVersion, &c.core}, {policyv1.SchemeGroupVersion, &c.policy}, {authorizationv1.SchemeGroupVersion, &authorization}} {
		if *group.client, err = newGroup(conf, group.gv, transport); err != nil {
			return nil, fmt.Errorf("connect to cluster: %w", err)
		}
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(conf, transport); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	seen := rest.CopyConfig(conf)
	seen.Wrap(narrow.Transport)
	if c.narrowed, err = dynamic.NewForConfig(seen); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	c.nodes = collection[*corev1.Node, *corev1.NodeList]{
		newResource[corev1.Node](c.core, "nodes", metav1.NamespaceNone), func() *corev1.NodeList { return &corev1.NodeList{} },
	}
	c.podsIn = func(namespace string) collection[*corev1.Pod, *corev1.PodList] {
		return collection[*corev1.Pod, *corev1.PodList]{newResource[corev1.Pod](c.core, "pods", namespace), func() *corev1.PodList { return &corev1.PodList{} }}
	}
	c.podTemplates = func(namespace string) resource[*corev1.PodTemplate] {
		return newResource[corev1.PodTemplate](c.core, "podtemplates", namespace)
	}
	c.reviews = newResource[authorizationv1.SelfSubjectAccessReview](authorization, "selfsubjectaccessreviews", metav1.NamespaceNone)
	return c, nil
}

// daemonLabel selects the pods of spot-handler, as the chart labels them.
const daemonLabel = "app.kubernetes.io/name=spot-handler"

// settings are those by which nodes are drained, as the pods of spot-handler in the cluster were
// given them: first those that drain all nodes, then those of the node. Without any, they are
// the defaults. from says where they were found.
func (c *caller) settings(ctx context.Context, node string) (cfg config, from string) {
	list := &corev1.PodList{}
	err := c.core.Get().Resource("pods").Param("labelSelector", daemonLabel).Param("resourceVersion", "0").Do(ctx).Into(list)
	for _, all := range []bool{true, false} {
		for _, pod := range list.Items {
			if !all && pod.Spec.NodeName != node {
				continue
			}
			if cfg, ok := settingsOf(pod); ok && reconciles(cfg) && cfg.fleet() == all {
				return cfg, "the settings of pod " + pod.Namespace + "/" + pod.Name
			}
		}
	}
	cfg = config{mode: modeQueue}
	cfg.define()
	if err != nil {
		return cfg, fmt.Sprintf("the default settings, as pods with the label %s could not be read: %v", daemonLabel, err)
	}
	return cfg, "the default settings, as no pod with the label " + daemonLabel + " was found that drains this node"
}

// settingsOf reads the arguments and variables of a pod as the program does that runs in it.
func settingsOf(pod corev1.Pod) (cfg config, ok bool) {
	for _, container := range pod.Spec.Containers {
		if len(container.Args) == 0 || !slices.Contains([]string{modeIMDS, modeDrain, modeQueue}, container.Args[0]) {
			continue
		}
		cfg.mode = container.Args[0]
		flags := titled("")
		for _, g := range cfg.define() {
			flags.AddFlagSet(g.FlagSet)
		}
		// What is wrong with them, the program itself has said.
		_, _ = parse(flags.FlagSet, container.Args[1:], func(name string) string {
			for _, v := range container.Env {
				if v.Name == name {
					return v.Value
				}
			}
			return ""
		})
		cfg.nodes, _ = labels.Parse(cfg.nodeSelector)
		return cfg, true
	}
	return config{}, false
}
