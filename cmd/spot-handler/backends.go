package main

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
)

// awsConfig is for the AWS APIs that queue mode calls. A pod on a spot node has no rights
// in AWS, so imds mode calls none.
func awsConfig(ctx context.Context, cfg config) (aws.Config, error) {
	if cfg.mode != modeQueue {
		return aws.Config{}, nil
	}
	return regionalConfig(ctx, cfg)
}

// newBackends makes what can make replacement nodes, in the order in which they are asked.
func newBackends(ctx context.Context, cfg config, conf aws.Config, clients *clients, index *nodes.Index, events *notify.Events,
	notify func(node string), registry prometheus.Registerer, logger zerolog.Logger) ([]provisioner.Backend, error) {
	backends := []provisioner.Backend{
		karpenter.New(karpenter.Options{
			FallbackNodePools: cfg.fallback, SingleNode: cfg.mode == modeIMDS, TTL: cfg.replacementTTL,
			Dynamic: clients.dynamic, Nodes: clients.nodes, Pods: clients.pods, Node: index.Get,
			Events: events, Notify: notify, Registerer: registry, Logger: logger,
		}),
	}
	if cfg.mode == modeQueue {
		groups, err := newGroups(ctx, conf, index, notify, registry, logger)
		if err != nil {
			return nil, err
		}
		backends = append(backends, groups)
	}
	return append(backends, placeholder.New(placeholder.Options{
		Selector: cfg.selector, Namespace: cfg.placeholderNamespace, Image: cfg.placeholderImage,
		SingleNode: cfg.nodeName, Node: index.Get,
		Pods: clients.podsIn(cfg.placeholderNamespace), Templates: clients.podTemplates(cfg.placeholderNamespace),
		Notify: notify, Registerer: registry, Logger: logger,
	})), nil
}

// rebalancePolicyOf reads the policy of a node's NodePool. A process that only marks nodes,
// or that leaves Karpenter alone, has no right to: whoever drains judges again.
func rebalancePolicyOf(cfg config, backends []provisioner.Backend) func(*corev1.Node) (handler.RebalancePolicy, error) {
	if !reconciles(cfg) && !cfg.dryRun || cfg.provisioner != provisioner.Auto && cfg.provisioner != provisioner.Karpenter {
		return nil
	}
	var allowed []string
	for _, p := range handler.RebalancePolicies() {
		allowed = append(allowed, string(p))
	}
	for _, backend := range backends {
		if k, ok := backend.(*karpenter.Backend); ok {
			return func(node *corev1.Node) (handler.RebalancePolicy, error) {
				policy, err := k.RebalancePolicy(node, allowed)
				return handler.RebalancePolicy(policy), err
			}
		}
	}
	return nil
}

func peersOf(clients *clients) handler.Peers {
	return func(ctx context.Context, selector string, fresh bool) ([]nodes.Peer, error) {
		return nodes.Peers(ctx, clients.core, selector, fresh)
	}
}
