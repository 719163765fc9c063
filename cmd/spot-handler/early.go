package main

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/early"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner/karpenter"
)

// newEarly is to, and keeps the notices about instances that are no Node yet.
func newEarly(c *clients, to interruption.Accepter, index *nodes.Index, registry prometheus.Registerer, logger zerolog.Logger) *early.Accepter {
	a := early.New(early.Options{
		Next: to, Nodes: index,
		Launched:   func(ctx context.Context) (map[string]bool, error) { return karpenter.Launched(ctx, c.dynamic) },
		Registerer: registry, Logger: part(logger, "early"),
	})
	index.OnAppear(a.Appeared)
	index.OnGone(a.Gone)
	return a
}
