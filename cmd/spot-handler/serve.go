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

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/webhook"
	"spot-handler/imds"
)

// source delivers notices until ctx ends. Healthy gives the reason why it does not
// get any at present.
type source interface {
	Run(ctx context.Context) error
	Healthy() error
}

// surroundings are what a daemon talks to.
type surroundings struct {
	kube   *rest.Config
	aws    aws.Config
	listen func() (net.Listener, error) // of metrics and health
	// metadata is the client of the metadata service; nil for the usual one.
	metadata imds.Client
}

// serve runs the daemon until ctx ends or a part of it fails.
func serve(ctx context.Context, cfg settings, stderr io.Writer) error {
	logger := newLogger(stderr, cfg.logLevel)
	tuneMemory(50)
	kube, err := restConfig(cfg)
	if err != nil {
		return err
	}
	conf, err := configOf(ctx, cfg)
	if err != nil {
		return err
	}
	return serveIn(ctx, cfg, surroundings{
		kube:   kube,
		aws:    conf,
		listen: func() (net.Listener, error) { return net.Listen("tcp", cfg.httpAddr) },
	}, logger)
}

// serveIn is serve in these surroundings.
func serveIn(ctx context.Context, cfg settings, in surroundings, logger zerolog.Logger) error {
	clients, err := connectDaemon(in.kube, cfg)
	if err != nil {
		return err
	}
	leases, err := newLeases(in.kube, leaseNamespace(cfg))
	if err != nil {
		return err
	}
	if err := checkPermissions(ctx, clients.own, permissionsOf(cfg, leaseNamespace(cfg))); errors.Is(err, errUsage) {
		return err
	} else if err != nil {
		// The API server cannot be reached or is slow. That is no reason not to start: an
		// interruption may be under way, and every part tries again by itself.
		logger.Warn().Err(err).Msg("permissions not checked")
	}
	listener, err := in.listen()
	if err != nil {
		return fmt.Errorf("%w: --http-addr (SPOT_HANDLER_HTTP_ADDR): %w", errUsage, err)
	}
	defer listener.Close()
	p := newProcess(cfg, clients, in, logger)

	logger.Info().Str("mode", cfg.mode).Str("version", version).Bool("dry_run", cfg.dryRun).
		Str("http_addr", listener.Addr().String()).Msg("starting")
	if reconciles(cfg) && !cfg.fleet() {
		logger.Warn().Msg("this process drains its own node, without regard to others: several nodes that are lost together " +
			"can move more pods of a Deployment than its maxSurge, they are not replaced in turn, and lost offerings are " +
			"forgotten with the process; spot-handler drain knows all nodes, and remembers")
	}
	if err := p.run(ctx, listener, leases); err != nil {
		return err
	}
	logger.Info().Msg("stopped")
	return nil
}

// process is the parts of the daemon that run beside each other.
type process struct {
	cfg      settings
	logger   zerolog.Logger
	registry *prometheus.Registry
	leader   prometheus.Gauge // nil where nobody is elected

	index       *nodes.Index
	source      source // nil where the Nodes have the notices
	leaderships *leaderships

	// What notifies people.
	events   *notify.Events
	webhooks *webhook.Sender
}

// newProcess makes the parts in order of dependency. It makes no call.
func newProcess(cfg settings, clients *clients, in surroundings, logger zerolog.Logger) *process {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(cfg.mode),
	)
	p := &process{cfg: cfg, logger: logger, registry: registry}
	if cfg.fleet() && reconciles(cfg) {
		p.leader = newLeader(registry)
	}

	p.index = nodes.New(clients.nodes, cfg.nodeName, part(logger, "nodes"))
	p.events = notify.NewEvents(clients.core, p.index.Get)
	options := cfg.webhooks
	options.UserAgent, options.Registerer, options.Logger = "spot-handler/"+version, registry, part(logger, "webhook")
	p.webhooks = webhook.New(options)
	notices := notify.All{p.events, p.webhooks}
	if !reconciles(cfg) {
		notices = nil // the process that drains notifies people
	}

	p.leaderships = newLeaderships(parts{
		backing: backing{
			cfg:     cfg,
			clients: clients,
			aws:     in.aws,
			index:   p.index,
			node:    p.index.Get,
			events:  p.events,
			logger:  logger,
		},
		events:  p.events,
		notices: notices,
		hooks:   newHooks(cfg, in.aws, registry, logger),
	}.leadership)
	var accept interruption.Accepter = p.leaderships
	if cfg.mode == modeQueue && !cfg.dryRun {
		accept = newEarly(clients, accept, p.index, registry, logger)
	}
	p.source = newSource(cfg, in, accept, p.index, registry, logger)
	return p
}

// run runs the parts until ctx ends or one fails.
func (p *process) run(ctx context.Context, listener net.Listener, leases leaseClient) error {
	// What notifies people ends after all who use it.
	var notifying sync.WaitGroup
	defer notifying.Wait()
	sending, stopSending := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSending()
	notifying.Go(func() { _ = p.webhooks.Run(sending) }) // its error is always nil
	notifying.Go(func() { _ = p.events.Run(sending) })   // likewise
	defer p.leaderships.close()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return httpServer{
			listener: listener,
			metrics:  prometheus.Gatherers{p.registry, p.leaderships},
			ready:    p.ready,
		}.Run(ctx)
	})
	g.Go(func() error { return p.index.Run(ctx) })
	if p.source != nil {
		g.Go(func() error {
			// Before the Nodes are known every instance would look like somebody else's.
			if err := p.index.Wait(ctx); err != nil {
				return nil // stopped before
			}
			return p.source.Run(ctx)
		})
	}
	if reconciles(p.cfg) {
		g.Go(func() error {
			if err := p.index.Wait(ctx); err != nil {
				return nil // stopped before
			}
			return p.drain(ctx, leases)
		})
	}
	return g.Wait()
}

// drain drains while this process leads.
func (p *process) drain(ctx context.Context, leases leaseClient) error {
	if p.cfg.fleet() && p.cfg.leaderElect {
		return lead(ctx, leases, leaseNamespace(p.cfg), p.leader, part(p.logger, "leader"), p.leaderships.Run)
	}
	if p.leader != nil { // a single replica leads by itself
		p.leader.Set(1)
		defer p.leader.Set(0)
	}
	return p.leaderships.Run(ctx)
}

// ready gives the reason why the process is not.
func (p *process) ready() error {
	if !p.index.Synced() {
		return errors.New("nodes are not known yet")
	}
	if p.source == nil {
		return nil
	}
	return p.source.Healthy()
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
