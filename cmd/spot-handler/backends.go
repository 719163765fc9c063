package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/dryrun"
	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/asg"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
	"spot-handler/handler/provisioner/room"
	"spot-handler/imds"
	"spot-handler/queue"
)

// backing is what backends are made over.
type backing struct {
	cfg        settings
	clients    *clients
	aws        aws.Config
	index      *nodes.Index // of Auto Scaling groups; nil if they are not to run
	node       func(name string) (*corev1.Node, bool)
	events     karpenter.Events // nil: none
	taken      *offerings.Memory
	room       provisioner.Room  // nil: it is not asked
	notify     func(node string) // nil: a request waits for its answer, and nothing runs what is made
	accept     acceptFunc        // of what brings nodes back to spot; nil: nothing does
	registerer prometheus.Registerer
	logger     zerolog.Logger
}

type acceptFunc func(ctx context.Context, n interruption.Notice) (interruption.Verdict, error)

// newProvisioner makes what asks backends for replacement nodes, in their order. The first is pools.
func newProvisioner(b backing) (*karpenter.Backend, *provisioner.Provisioner) {
	cfg := b.cfg
	pools := karpenter.New(karpenter.Options{
		FallbackNodePools: cfg.fallback,
		Rebalance:         cfg.rebalance,
		Calm:              cfg.calm,
		SingleNode:        cfg.nodeName != "",
		Offerings:         b.taken,
		TTL:               cfg.replacementTTL,
		Dynamic:           b.clients.dynamic,
		Nodes:             b.clients.nodes,
		Pods:              b.clients.pods,
		Node:              b.node,
		Events:            b.events,
		Notify:            b.notify,
		Return:            b.accept,
		Registerer:        b.registerer,
		Logger:            b.logger,
	})
	backends := []provisioner.Backend{pools}
	if cfg.mode == modeQueue {
		notify := b.notify
		if b.index == nil { // AWS is not asked
			notify = func(string) {}
		}
		backends = append(backends, asg.New(asg.Options{
			AutoScaling: autoscaling.NewFromConfig(b.aws),
			Terminate:   ec2.NewFromConfig(b.aws).TerminateInstances,
			Nodes:       b.index,
			Notify:      notify,
			Logger:      b.logger,
		}))
	}
	backends = append(backends, placeholder.New(placeholder.Options{
		Selector:   cfg.fallbacks,
		Image:      cfg.placeholderImage,
		SingleNode: cfg.nodeName,
		Node:       b.node,
		Pods:       newResource[corev1.Pod, corev1.PodList](b.clients.core, "pods", placeholder.Namespace),
		Templates:  newResource[corev1.PodTemplate, corev1.PodTemplateList](b.clients.core, "podtemplates", placeholder.Namespace),
		Notify:     b.notify,
		Logger:     b.logger,
	}))
	return pools, provisioner.New(provisioner.Options{
		Choice:     cfg.provisioner,
		Backends:   backends,
		Room:       b.room,
		Registerer: b.registerer,
		Logger:     b.logger,
	})
}

// newRoom is what says whether a replacement is needed; nil if one always is.
func newRoom(b backing) provisioner.Room {
	if b.cfg.replacement != replacementWhenNeeded {
		return nil
	}
	return room.New(room.Options{Pods: b.clients.pods, Nodes: b.clients.nodes, Node: b.node, Notify: b.notify})
}

// dryRequests asks for replacements over clients that change nothing, and has each answer from a
// provisioner of its own: what nobody makes takes no room from the next node, and is not followed.
func dryRequests(b backing) dryrun.RequestFunc {
	b.events, b.notify, b.registerer, b.logger = nil, nil, nil, b.logger.Level(zerolog.WarnLevel)
	b.room = newRoom(b)
	return func(ctx context.Context, node *corev1.Node, rec interruption.Record, need provisioner.Need) (interruption.Replacement, error) {
		pools, provider := newProvisioner(b)
		defer pools.Close()
		return provider.Request(ctx, node, rec, need)
	}
}

// rulesOf are the operator's rules for a node: those of the flags, whether it is opted out, and
// the rebalance policy of its NodePool. A process that only marks nodes, or that leaves Karpenter alone, has no right to
// read that: the process that drains judges again.
func rulesOf(cfg settings, pools *karpenter.Backend) nodes.RulesFunc {
	rules := interruption.Rules{Rebalance: cfg.rebalance, ScheduledLead: cfg.scheduledLead}
	if cfg.provisioner == provisioner.None && rules.Rebalance.Replaces() {
		rules.Rebalance = interruption.RebalanceIgnore // there will be no replacement, and nothing happens before
	}
	if !reconciles(cfg) && !cfg.dryRun || !asksKarpenter(cfg) {
		pools = nil
	}
	return func(node *corev1.Node, recommended bool) (interruption.Rules, error) {
		own := rules
		switch {
		case node.Labels[interruption.IgnoreLabel] == "true":
			own.Unmanaged = "the node is labelled " + interruption.IgnoreLabel + "=true"
		case cfg.nodes != nil && !cfg.nodes.Matches(labels.Set(node.Labels)):
			own.Unmanaged = "--managed-nodes does not select the node"
		}
		if !recommended || pools == nil {
			return own, nil
		}
		policy, err := pools.RebalancePolicy(node)
		own.Rebalance = cmp.Or(policy, rules.Rebalance)
		return own, err
	}
}

// pollInterval is shorter than the five seconds that AWS advises: three of 120 are worth some small
// requests, and the metadata service allows 1024 packets a second.
const pollInterval = 2 * time.Second

// newSource takes the notices of the mode, and passes them on. It is nil in drain mode: the Nodes have
// them already.
func newSource(
	cfg settings, in surroundings, to interruption.Accepter, index *nodes.Index, registry prometheus.Registerer, logger zerolog.Logger,
) source {
	switch cfg.mode {
	case modeDrain:
		return nil
	case modeQueue:
		return queue.New(queue.Options{
			Client: sqs.NewFromConfig(in.aws), QueueURL: cfg.queueURL,
			Accepter: to, Reserved: index.Reserved, DryRun: cfg.dryRun,
			Registerer: registry, Logger: logger,
		})
	}
	client := in.metadata
	if client == nil {
		client = imds.NewClient(in.aws)
	}
	return imds.New(imds.Options{
		Client: client, Accepter: to, NodeName: cfg.nodeName, Kinds: cfg.kinds, Interval: pollInterval,
		Registerer: registry, Logger: logger,
	})
}

// newHooks answers lifecycle hooks; nil in the other modes, where they are not answered.
func newHooks(cfg settings, conf aws.Config, registry prometheus.Registerer, logger zerolog.Logger) lifecycle.Hooks {
	if cfg.mode != modeQueue {
		return nil
	}
	return lifecycle.New(lifecycle.Options{AutoScaling: autoscaling.NewFromConfig(conf), Registerer: registry, Logger: logger})
}

// configOf is the AWS configuration for the mode's calls. In queue mode it has the queue's region if
// no region is given. drain mode calls nothing.
func configOf(ctx context.Context, cfg settings) (aws.Config, error) {
	if cfg.mode == modeDrain {
		return aws.Config{}, nil
	}
	conf, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return aws.Config{}, fmt.Errorf("load AWS configuration: %w", err)
	}
	if cfg.mode == modeIMDS { // calls only the metadata service
		return conf, nil
	}
	if conf.Region = cmp.Or(conf.Region, regionOf(cfg.queueURL)); conf.Region == "" {
		return aws.Config{}, fmt.Errorf("%w: AWS_REGION is not set, and --queue-url (SPOT_HANDLER_QUEUE_URL) %q does not name a region",
			errUsage, cfg.queueURL)
	}
	conf.Retryer = func() aws.Retryer { return aws.NopRetryer{} } // callers retry, and decide how often
	conf.APIOptions = append(conf.APIOptions, awsfault.PlainBody)
	return conf, nil
}

// regionOf reads the region from the host of a queue's URL: sqs.<region>.amazonaws.com
// and its like in other partitions; empty for any other host.
// https://docs.aws.amazon.com/general/latest/gr/sqs-service.html
func regionOf(queueURL string) string {
	u, err := url.Parse(queueURL)
	if err != nil {
		return ""
	}
	labels := strings.Split(u.Hostname(), ".")
	if len(labels) < 4 || labels[0] != "sqs" || labels[2] != "amazonaws" {
		return ""
	}
	return labels[1]
}
