package main

import (
	"fmt"

	"k8s.io/client-go/dynamic"
	typedauthorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedpolicyv1 "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// clients are the API groups that the program uses, over one connection.
type clients struct {
	core         *typedcorev1.CoreV1Client
	policy       *typedpolicyv1.PolicyV1Client
	coordination *typedcoordinationv1.CoordinationV1Client
	reviews      typedauthorizationv1.SelfSubjectAccessReviewInterface
	dynamic      *dynamic.DynamicClient
}

func newClients(cfg config) (*clients, error) {
	conf, err := restConfig(cfg)
	if err != nil {
		return nil, err
	}
	transport, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	// Karpenter's objects have no protobuf form; all others are smaller and cheaper in it.
	plain := rest.CopyConfig(conf)
	conf.ContentType = "application/vnd.kubernetes.protobuf"
	conf.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"

	c := &clients{}
	if c.core, err = typedcorev1.NewForConfigAndClient(conf, transport); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	if c.policy, err = typedpolicyv1.NewForConfigAndClient(conf, transport); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	if c.coordination, err = typedcoordinationv1.NewForConfigAndClient(conf, transport); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	reviews, err := typedauthorizationv1.NewForConfigAndClient(conf, transport)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	c.reviews = reviews.SelfSubjectAccessReviews()
	if c.dynamic, err = dynamic.NewForConfigAndClient(plain, transport); err != nil {
		return nil, fmt.Errorf("connect to cluster: %w", err)
	}
	return c, nil
}

// restConfig finds the cluster as kubectl does, then as a pod does.
func restConfig(cfg config) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: cfg.Kubeconfig}
	conf, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%w: no cluster: --kubeconfig (KUBECONFIG) %q, and not in a pod: %w", errUsage, cfg.Kubeconfig, err)
	}
	conf.UserAgent = "spot-handler/" + version
	conf.QPS, conf.Burst = -1, 0
	if cfg.QPS > 0 {
		conf.QPS, conf.Burst = float32(cfg.QPS), cfg.Burst
	}
	return conf, nil
}
