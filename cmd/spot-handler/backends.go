package main

import (
	"cmp"
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
	"spot-handler/handler/provisioner/room"
)

// awsConfig is for the AWS APIs that queue mode calls. The other modes call none.
func awsConfig(ctx context.Context, cfg config) (aws.Config, error) {
	if cfg.mode != modeQueue {
		return aws.Config{}, nil
	}
	return regionalConfig(ctx, cfg)
}

// newBackends makes what can make replacement nodes, in the order in which they are asked.
func newBackends(cfg config, conf aws.Config, clients *clients, index *nodes.Index, events *notify.Events,
	taken *offerings.Memory, notify func(node string), registry prometheus.Registerer, logger zerolog.Logger) []provisioner.Backend {
	backends := []provisioner.Backend{
		karpenter.New(karpenter.Options{
			FallbackNodePools: cfg.fallback, RebalanceCapacity: cfg.rebalanceCapacity, SingleNode: !cfg.fleet(), Offerings: taken, TTL: cfg.replacementTTL,
			Dynamic: clients.dynamic, Nodes: clients.nodes, Pods: clients.pods, Node: index.Get,
			Events: events, Notify: notify, Registerer: registry, Logger: logger,
		}),
	}
	if cfg.mode == modeQueue {
		backends = append(backends, newGroups(conf, index, notify, registry, logger))
	}
	return append(backends, placeholder.New(placeholder.Options{
		Selector: cfg.selector, Namespace: cfg.placeholderNamespace, Image: cfg.placeholderImage,
		SingleNode: cfg.nodeName, Node: index.Get,
		Pods: clients.podsIn(cfg.placeholderNamespace), Templates: clients.podTemplates(cfg.placeholderNamespace),
		Notify: notify, Registerer: registry, Logger: logger,
	}))
}

// newRoom says whether a replacement is needed; nil if one always is.
func newRoom(cfg config, c *clients, index *nodes.Index, notify func(node string)) provisioner.Room {
	if cfg.replacement == replacementAlways {
		return nil
	}
	if cfg.dryRun { // which asks once, and can wait
		notify = nil
	}
	return room.New(room.Options{Pods: c.pods, Nodes: c.nodes, Node: index.Get, Notify: notify})
}

// rulesOf are the operator's rules for a node: those of the flags, whether it is opted out, and
// the rebalance policy of its NodePool. A process that only marks nodes, or that leaves Karpenter alone, has no right to
// read that: whoever drains judges again.
func rulesOf(cfg config, backends []provisioner.Backend) nodes.RulesFunc {
	rules := interruption.Rules{Rebalance: interruption.RebalancePolicy(cfg.rebalance), ScheduledLead: cfg.scheduledLead}
	if cfg.provisioner == provisioner.None && rules.Rebalance == interruption.RebalanceReplace {
		rules.Rebalance = interruption.RebalanceIgnore // there will be no replacement, and nothing happens before
	}
	var pools *karpenter.Backend
	if (reconciles(cfg) || cfg.dryRun) && asksKarpenter(cfg) {
		for _, backend := range backends {
			if k, ok := backend.(*karpenter.Backend); ok {
				pools = k
			}
		}
	}
	var allowed []string
	for _, p := range interruption.RebalancePolicies() {
		allowed = append(allowed, string(p))
	}
	return func(node *corev1.Node, recommended bool) (interruption.Rules, error) {
		own := rules
		switch {
		case node.Labels[interruption.IgnoreLabel] == "true":
			own.Unmanaged = "the node is labelled " + interruption.IgnoreLabel + "=true"
		case cfg.nodes != nil && !cfg.nodes.Matches(labels.Set(node.Labels)):
			own.Unmanaged = "--node-selector does not select the node"
		}
		if !recommended || pools == nil {
			return own, nil
		}
		policy, err := pools.RebalancePolicy(node, allowed)
		own.Rebalance = cmp.Or(interruption.RebalancePolicy(policy), rules.Rebalance)
		return own, err
	}
}
