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
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/asg"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
	"spot-handler/handler/provisioner/room"
)

// awsConfig is for the AWS APIs that queue mode calls. The other modes call none.
func awsConfig(ctx context.Context, cfg settings) (aws.Config, error) {
	if cfg.mode != modeQueue {
		return aws.Config{}, nil
	}
	return regionalConfig(ctx, cfg)
}

// backing is what backends are made over.
type backing struct {
	clients    *clients
	aws        aws.Config
	index      *nodes.Index // of Auto Scaling groups; nil if they are not to run
	node       func(name string) (*corev1.Node, bool)
	events     karpenter.Events // nil: none
	taken      *offerings.Memory
	notify     func(node string) // can be nil
	registerer prometheus.Registerer
	logger     zerolog.Logger
}

// newBackends makes what can make replacement nodes, in the order in which they are asked. The first
// is pools.
func newBackends(cfg settings, b backing) (pools *karpenter.Backend, all []provisioner.Backend) {
	pools = karpenter.New(karpenter.Options{
		FallbackNodePools: cfg.fallback, RebalanceCapacity: cfg.rebalanceCapacity, SingleNode: cfg.nodeName != "", Offerings: b.taken, TTL: cfg.replacementTTL,
		Dynamic: b.clients.dynamic, Nodes: b.clients.nodes, Pods: b.clients.pods, Node: b.node,
		Events: b.events, Notify: b.notify, Registerer: b.registerer, Logger: b.logger,
	})
	all = []provisioner.Backend{pools}
	if cfg.mode == modeQueue {
		all = append(all, asg.New(asg.Options{
			AutoScaling: autoScaling(b.aws), EC2: newEC2(b.aws), Nodes: b.index, Notify: b.notify, Registerer: b.registerer, Logger: b.logger,
		}))
	}
	return pools, append(all, placeholder.New(placeholder.Options{
		Selector: cfg.fallbacks, Namespace: cfg.placeholderNamespace, Image: cfg.placeholderImage,
		SingleNode: cfg.nodeName, Node: b.node,
		Pods: b.clients.podsIn(cfg.placeholderNamespace), Templates: b.clients.podTemplates(cfg.placeholderNamespace),
		Notify: b.notify, Registerer: b.registerer, Logger: b.logger,
	}))
}

// newProvisioner asks the backends, in their order.
func newProvisioner(cfg settings, b backing, backends []provisioner.Backend) *provisioner.Provisioner {
	options := provisioner.Options{Choice: cfg.provisioner, Backends: backends, Registerer: b.registerer, Logger: b.logger}
	if cfg.replacement == replacementWhenNeeded {
		notify := b.notify
		if cfg.dryRun { // which asks once, and can wait
			notify = nil
		}
		options.Room = room.New(room.Options{Pods: b.clients.pods, Nodes: b.clients.nodes, Node: b.node, Notify: notify})
	}
	return provisioner.New(options)
}

// rulesOf are the operator's rules for a node: those of the flags, whether it is opted out, and
// the rebalance policy of its NodePool. A process that only marks nodes, or that leaves Karpenter alone, has no right to
// read that: whoever drains judges again.
func rulesOf(cfg settings, pools *karpenter.Backend) nodes.RulesFunc {
	rules := interruption.Rules{Rebalance: interruption.RebalancePolicy(cfg.rebalance), ScheduledLead: cfg.scheduledLead}
	if cfg.provisioner == provisioner.None && rules.Rebalance == interruption.RebalanceReplace {
		rules.Rebalance = interruption.RebalanceIgnore // there will be no replacement, and nothing happens before
	}
	if !reconciles(cfg) && !cfg.dryRun || !asksKarpenter(cfg) {
		pools = nil
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
