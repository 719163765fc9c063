package main

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/drain"
	"spot-handler/handler"
	"spot-handler/handler/condition"
	"spot-handler/handler/dryrun"
	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
	"spot-handler/handler/nodes"
	"spot-handler/handler/notify"
	"spot-handler/handler/offerings"
	"spot-handler/handler/turns"
	"spot-handler/handler/workloads"
)

// parts are what outlives a tenure.
type parts struct {
	cfg     settings
	conf    aws.Config
	clients *clients
	index   *nodes.Index
	events  *notify.Events
	notices notify.Notifier
	hooks   lifecycle.Hooks // nil: they are not answered
	logger  zerolog.Logger
}

// tenure makes a new one. It makes no call.
func (p parts) tenure(registry prometheus.Registerer) tenure {
	cfg := p.cfg
	policy := cfg.policy
	policy.Self = ownPod(cfg)
	var h *handler.Handler
	enqueue := func(node string) { h.Enqueue(node) }
	drainer := drain.New(drain.Options{
		Pods: p.clients.core, Budgets: p.clients.policy, Dynamic: p.clients.dynamic, Policy: policy,
		Notify: enqueue, Events: p.events,
		Registerer: registry, Logger: part(p.logger, "drain"),
	})
	taken := offerings.New()
	over := backing{p.clients, p.conf, p.index, p.index.Get, p.events, taken, enqueue, registry, p.logger}
	pools, backends := newBackends(cfg, over)
	provider := newProvisioner(cfg, over, backends)
	rules, log := rulesOf(cfg, pools), part(p.logger, "handler")
	h = handler.New(handler.Options{
		Nodes: p.clients.nodes, Index: p.index, Drainer: drainer, Provisioner: provider, Turns: turns.NewLine(cfg.rebalances, p.index.PoolSize),
		Hooks: lifecycle.NewTender(lifecycle.TenderOptions{
			Hooks: p.hooks, HeartbeatUntil: cfg.heartbeatUntil,
			CordonOnly: cfg.cordonOnly, Notify: enqueue, Logger: log,
		}),
		Events: p.notices, Node: cfg.nodeName,
		Workloads: workloads.New(workloads.Options{
			On: cfg.workloadNotices && !cfg.cordonOnly, Networks: cfg.networks, HostNetwork: len(cfg.networks) > 0, IsNode: p.index.HasAddress,
			Pods: p.clients.core, Answered: drainer.Answer, Leaves: drainer.Leaves, Silent: drainer.Silent, Events: p.events,
			UserAgent: "spot-handler/" + version, Registerer: registry, Logger: part(p.logger, "workloads"),
		}),
		Offerings:  taken,
		Conditions: condition.New(condition.Options{Nodes: p.clients.nodes, Index: p.index, Logger: log}),
		Rules:      rules, RebalanceTTL: cfg.rebalanceTTL, ReleaseNode: cfg.release, CordonOnly: cfg.cordonOnly,
		Registerer: registry, Logger: log,
	})
	var accept interruption.Accepter = h
	switch {
	case cfg.dryRun:
		accept = dryrun.New(dryrun.Options{
			Index: p.index, Rules: rules, ReleaseNode: cfg.release, CordonOnly: cfg.cordonOnly,
			Survey: func(ctx context.Context, node string, in drain.Interruption) (drain.Situation, error) {
				return drain.Survey(ctx, p.clients.core, p.clients.policy, p.clients.dynamic, node, in, policy)
			},
			Chooser: provider, Logger: log,
		})
	case p.hooks != nil:
		accept = lifecycle.Accepter{Next: h, Hooks: p.hooks, Nodes: p.index, Rules: rules, Logger: log}
	}
	return tenure{Accepter: accept, drain: h.Run}
}
