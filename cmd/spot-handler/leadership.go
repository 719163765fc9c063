package main

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
	"spot-handler/drain/plan"
	"spot-handler/drain/watch"
	"spot-handler/handler"
	"spot-handler/handler/dryrun"
	"spot-handler/handler/early"
	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/turns"
	"spot-handler/handler/workloads"
)

// leadership is what records notices, and what drains while the process leads.
type leadership struct {
	interruption.Accepter
	drain   func(ctx context.Context) error // blocks until ctx ends
	close   func()                          // ends one that does not drain, or not any more
	metrics *prometheus.Registry
}

// leaderships begins a new leadership when the lease has been lost. Nothing that a leader knew outlives
// its leadership: the next one goes by what stands in the cluster, as another replica's does.
type leaderships struct {
	make    func(*prometheus.Registry) leadership
	current atomic.Pointer[leadership]
}

func newLeaderships(make func(*prometheus.Registry) leadership) *leaderships {
	l := &leaderships{make: make}
	l.begin()
	return l
}

func (l *leaderships) begin() {
	next := l.make(prometheus.NewRegistry())
	l.current.Store(&next)
}

// Accept records a notice, whether the process leads or not. It is safe for concurrent use.
func (l *leaderships) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	return l.current.Load().Accept(ctx, n)
}

// Gather collects the metrics of the leadership. It is safe for concurrent use.
func (l *leaderships) Gather() ([]*dto.MetricFamily, error) { return l.current.Load().metrics.Gather() }

// Run drains until ctx ends. If it ends because the lease is lost, the next leadership begins, with
// metrics that count from zero, as after a restart.
func (l *leaderships) Run(ctx context.Context) error {
	leading := l.current.Load()
	err := leading.drain(ctx)
	leading.close()
	if errors.Is(context.Cause(ctx), errLostLease) {
		l.begin()
	}
	return err
}

// close ends the current leadership.
func (l *leaderships) close() { l.current.Load().close() }

// parts are what outlives a leadership.
type parts struct {
	backing
	events  *notify.Events
	notices notify.Notifier
	hooks   lifecycle.Hooks // nil: they are not answered
}

// leadership makes a new one. It makes no call.
func (p parts) leadership(registry *prometheus.Registry) leadership {
	cfg := p.cfg
	policy := cfg.policy
	policy.Self = ownPod(cfg)
	var h *handler.Handler
	enqueue := func(node string) { h.Enqueue(node) }
	drainer := drain.New(drain.Options{
		Pods: p.clients.core, Budgets: p.clients.policy, Dynamic: p.clients.dynamic, Policy: policy,
		Notify: enqueue, Events: p.events,
		Drained: func(node string) bool { return h.Drained(node) }, Node: cfg.nodeName,
		Registerer: registry, Logger: part(p.logger, "drain"),
	})
	p.taken, p.notify, p.registerer = offerings.New(), enqueue, registry
	if cfg.bringsBack() {
		p.accept = func(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
			return h.Accept(ctx, n)
		}
	}
	p.room = newRoom(p.backing)
	pools, provider := newProvisioner(p.backing)
	if asksKarpenter(cfg) {
		p.taken.Identify(pools.AsMade)
	}
	rules, log := rulesOf(cfg, pools), part(p.logger, "handler")
	h = handler.New(handler.Options{
		Nodes:       p.clients.nodes,
		Index:       p.index,
		Drainer:     drainer,
		Provisioner: provider,
		Turns:       turns.NewLine(cfg.rebalances, p.index.PoolSize, enqueue),
		Hooks: lifecycle.NewTender(lifecycle.TenderOptions{
			Hooks: p.hooks, HeartbeatUntil: cfg.heartbeatUntil,
			CordonOnly: cfg.cordonOnly, Notify: enqueue, Logger: log,
		}),
		Events: p.notices,
		Node:   cfg.nodeName,
		Workloads: workloads.New(workloads.Options{
			On: cfg.workloadNotices && !cfg.cordonOnly, Networks: cfg.networks, IsNode: p.index.HasAddress,
			Pods: p.clients.core, Answered: drainer.Answer, Events: p.events,
			UserAgent: "spot-handler/" + version, Registerer: registry, Logger: part(p.logger, "workloads"),
		}),
		Offerings:    p.taken,
		PodLeft:      p.events.PodLeft,
		Rules:        rules,
		RebalanceTTL: cfg.rebalanceTTL,
		ReleaseNode:  cfg.release,
		CordonOnly:   cfg.cordonOnly,
		Registerer:   registry,
		Logger:       log,
	})
	var accept interruption.Accepter = h
	switch {
	case cfg.dryRun:
		accept = dryrun.New(dryrun.Options{
			Index: p.index, Rules: rules, ReleaseNode: cfg.release, CordonOnly: cfg.cordonOnly,
			Survey: func(ctx context.Context, node string, in plan.NodeState) (*plan.Survey, error) {
				return watch.Survey(ctx, watch.Clients{Pods: p.clients.core, Budgets: p.clients.policy, Dynamic: p.clients.dynamic}, node, in, policy)
			},
			Request: dryRequests(p.backing), Logger: log,
		})
	case p.hooks != nil:
		accept = lifecycle.Accepter{Next: h, Hooks: p.hooks, Nodes: p.index, Rules: rules, Logger: log}
	}
	end := func() { h.Close(); pools.Close() }
	if !cfg.fleet() { // each node has a process of its own, which remembers until it ends
		return leadership{accept, h.Run, end, registry}
	}
	registry.MustRegister(p.taken.Collector())
	kept := newResource[corev1.ConfigMap, corev1.ConfigMapList](p.clients.core, "configmaps", leaseNamespace(cfg))
	return leadership{accept, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return h.Run(ctx) })
		g.Go(func() error { return p.taken.Keep(ctx, kept, p.index.All, part(p.logger, "offerings")) })
		return g.Wait()
	}, end, registry}
}

// newEarly is to, and keeps the notices about instances that are no Node yet.
func newEarly(
	c *clients, to interruption.Accepter, index *nodes.Index, registry prometheus.Registerer, logger zerolog.Logger,
) *early.Accepter {
	a := early.New(early.Options{
		Next: to, Nodes: index,
		Launched:   func(ctx context.Context) (map[string]bool, error) { return karpenter.Launched(ctx, c.dynamic) },
		Registerer: registry, Logger: part(logger, "early"),
	})
	index.OnAppear(a.Appeared)
	index.OnGone(a.Gone)
	return a
}
