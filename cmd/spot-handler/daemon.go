package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/webhook"
)

// daemons is the group of the commands that run until they are stopped.
const daemons = "daemons"

func newIMDS(getenv func(string) string) *cobra.Command {
	return newDaemon(modeIMDS, getenv, &cobra.Command{
		Use:   "imds --node-name=NAME",
		Short: "Watch this node's instance metadata service; runs on every spot node, as a DaemonSet",
		Long: `Watches this node's instance metadata service. On a notice: cordons the node,
requests a replacement, and drains the node before EC2 takes it. With --drain=false it
only marks the node, for spot-handler drain or queue to drain: that process sees all
nodes, so several that are lost together count as one for surge, limits and turns.

The metadata service answers a pod only with hostNetwork, or with a hop limit of 2
on the instance. AWS_EC2_METADATA_SERVICE_ENDPOINT points elsewhere.`,
		Example: `  # log what would be done on this node, and touch nothing
  spot-handler imds --node-name=ip-10-0-1-2.ec2.internal --dry-run

  # mark the node only; spot-handler drain drains it
  NODE_NAME=ip-10-0-1-2.ec2.internal spot-handler imds --drain=false`,
	})
}

func newQueue(getenv func(string) string) *cobra.Command {
	return newDaemon(modeQueue, getenv, &cobra.Command{
		Use:   "queue --queue-url=URL",
		Short: "Consume the SQS queue that EventBridge feeds; runs once per cluster, as a Deployment",
		Long: `Consumes the SQS queue that EventBridge feeds with the notices of all instances. On
a notice for one of this cluster: cordons its node, requests a replacement, and drains
the node before EC2 takes it.

Region, credentials and endpoints come from the AWS SDK's variables: AWS_REGION,
AWS_ENDPOINT_URL_SQS and so on.`,
		Example: `  # log what would be done, and leave the messages in the queue
  spot-handler queue --dry-run \
    --queue-url=https://sqs.eu-west-1.amazonaws.com/123456789012/spot-handler

  # replace the nodes of the NodePool batch from the NodePool batch-fallback
  spot-handler queue --fallback-nodepool=batch=batch-fallback \
    --queue-url=https://sqs.eu-west-1.amazonaws.com/123456789012/spot-handler`,
	})
}

// newDaemon makes cmd the command of a mode.
func newDaemon(mode string, getenv func(string) string, cmd *cobra.Command) *cobra.Command {
	cfg := settings{mode: mode}
	addGroups(cmd, cfg.define())
	cmd.Long += "\n\nEvery flag can be given as a variable: --dry-run is " + variable("dry-run") + ".\nA flag overrides its variable."
	cmd.GroupID, cmd.ValidArgsFunction = daemons, cobra.NoFileCompletions
	readsVariables(cmd, getenv, cfg.check, func(cmd *cobra.Command) error {
		return serve(cmd.Context(), cfg, cmd.ErrOrStderr())
	})
	return cmd
}

func newDrain(getenv func(string) string) *cobra.Command {
	return newDaemon(modeDrain, getenv, &cobra.Command{
		Use:   "drain",
		Short: "Drain the nodes that imds has marked; runs once per cluster, as a Deployment",
		Long: `Drains the nodes that spot-handler imds --drain=false has marked: requests a
replacement, and drains the node before EC2 takes it. One replica drains all nodes, so
disruption budgets, maxSurge, limits and turns count for all of them together.

It needs no queue, and calls nothing in AWS.`,
		Example: `  # beside a DaemonSet that marks nodes: spot-handler imds --drain=false
  spot-handler drain

  # replace the nodes of the NodePool batch from the NodePool batch-fallback
  spot-handler drain --fallback-nodepool=batch=batch-fallback`,
	})
}

// source delivers notices until ctx ends. Healthy gives the reason why it does not
// get any at present.
type source interface {
	Run(ctx context.Context) error
	Healthy() error
}

// serve puts the parts together, in order of dependency, and runs them until ctx ends
// or one fails.
func serve(ctx context.Context, cfg settings, stderr io.Writer) error {
	logger := newLogger(stderr, cfg.logLevel)
	tuneMemory(50)

	kube, err := restConfig(cfg)
	if err != nil {
		return err
	}
	leaseNamespace := leaseNamespace(cfg)
	clients, err := connectDaemon(kube, cfg)
	if err != nil {
		return err
	}
	leases, err := newLeases(kube, leaseNamespace)
	if err != nil {
		return err
	}
	if err := checkPermissions(ctx, clients.own, permissionsOf(cfg, leaseNamespace)); errors.Is(err, errUsage) {
		return err
	} else if err != nil {
		// The API server is away or slow. That is no reason not to start: an
		// interruption may be under way, and every part tries again by itself.
		logger.Warn().Err(err).Msg("permissions not checked")
	}
	listener, err := net.Listen("tcp", cfg.httpAddr)
	if err != nil {
		return fmt.Errorf("%w: --http-addr (SPOT_HANDLER_HTTP_ADDR): %w", errUsage, err)
	}
	defer listener.Close()

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), buildInfo(cfg.mode),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	var leader prometheus.Gauge // nil where nobody is elected
	if cfg.fleet() && reconciles(cfg) {
		leader = newLeader(registry)
	}

	index := nodes.New(clients.nodes, cfg.nodeName, part(logger, "nodes"))
	events := notify.NewEvents(clients.core, index.Get)
	webhookOptions := cfg.webhooks
	webhookOptions.UserAgent, webhookOptions.Registerer, webhookOptions.Logger = "spot-handler/"+version, registry, part(logger, "webhook")
	webhooks := webhook.New(webhookOptions)

	conf, err := configOf(ctx, cfg)
	if err != nil {
		return err
	}
	hooks := newHooks(cfg, conf, registry, logger)
	notices := notify.All{events, webhooks}
	if !reconciles(cfg) {
		notices = nil // the process that drains notifies people
	}
	leaderships := newLeaderships(parts{
		backing: backing{
			cfg:     cfg,
			clients: clients,
			aws:     conf,
			index:   index,
			node:    index.Get,
			events:  events,
			logger:  logger,
		},
		events:  events,
		notices: notices,
		hooks:   hooks,
	}.leadership)
	var accept interruption.Accepter = leaderships
	if cfg.mode == modeQueue && !cfg.dryRun {
		accept = newEarly(clients, accept, index, registry, logger)
	}
	from := newSource(cfg, conf, accept, registry, logger)
	logger.Info().Str("mode", cfg.mode).Str("version", version).Bool("dry_run", cfg.dryRun).
		Str("http_addr", listener.Addr().String()).Msg("starting")
	if reconciles(cfg) && !cfg.fleet() {
		logger.Warn().Msg("this process drains its own node, without regard to others: several nodes that are lost together can move more pods of a Deployment than its maxSurge, they are not replaced in turn, and lost offerings are forgotten with the process; spot-handler drain knows all nodes, and remembers")
	}
	// What notifies people ends after all who use it.
	var notifying sync.WaitGroup
	defer notifying.Wait()
	sending, stopSending := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSending()
	notifying.Go(func() { _ = webhooks.Run(sending) }) // its error is always nil
	notifying.Go(func() { _ = events.Run(sending) })   // likewise

	ready := func() error {
		if !index.Synced() {
			return errors.New("nodes are not known yet")
		}
		if from == nil {
			return nil
		}
		return from.Healthy()
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return httpServer{listener: listener, metrics: prometheus.Gatherers{registry, leaderships}, ready: ready}.Run(ctx)
	})
	g.Go(func() error { return index.Run(ctx) })
	g.Go(func() error {
		// Before the Nodes are known every instance would look like somebody else's.
		if err := index.Wait(ctx); err != nil || from == nil {
			return nil // stopped before
		}
		return from.Run(ctx)
	})
	if reconciles(cfg) {
		g.Go(func() error {
			if err := index.Wait(ctx); err != nil {
				return nil // stopped before
			}
			if cfg.fleet() && cfg.leaderElect {
				return lead(ctx, leases, leaseNamespace, leader, part(logger, "leader"), leaderships.Run)
			}
			if leader != nil { // a single replica leads by itself
				leader.Set(1)
				defer leader.Set(0)
			}
			return leaderships.Run(ctx)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	logger.Info().Msg("stopped")
	return nil
}

// reconciles reports whether this process drains, as opposed to marking Nodes only.
func reconciles(cfg settings) bool {
	return !cfg.dryRun && (cfg.fleet() || cfg.drain)
}

// ownPod names this process's pod; empty where it runs in none.
func ownPod(cfg settings) types.NamespacedName {
	namespace := cmp.Or(cfg.podNamespace, accountNamespace())
	if !cfg.fleet() || namespace == "" {
		return types.NamespacedName{}
	}
	name := cfg.podName
	if name == "" {
		name, _ = os.Hostname()
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}
