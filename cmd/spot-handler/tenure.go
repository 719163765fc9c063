package main

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"spot-handler/handler/interruption"
)

// tenure is what records notices, and what drains while the process leads.
type tenure struct {
	interruption.Accepter
	drain func(ctx context.Context) error // blocks until ctx ends
}

// tenures begins a new tenure when the lease has been lost. Nothing that a leader knew outlives
// its tenure: the next one goes by what stands in the cluster, as another replica's does.
type tenures struct {
	make     func(prometheus.Registerer) tenure
	registry prometheus.Registerer

	current atomic.Pointer[tenure]
	shown   *shown // metrics of current
}

func newTenures(registry prometheus.Registerer, make func(prometheus.Registerer) tenure) *tenures {
	t := &tenures{make: make, registry: registry}
	t.begin()
	return t
}

func (t *tenures) begin() {
	t.shown = &shown{Registerer: t.registry}
	next := t.make(t.shown)
	t.current.Store(&next)
}

// Accept records a notice, whether the process leads or not. It is safe for concurrent use.
func (t *tenures) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	return t.current.Load().Accept(ctx, n)
}

// Run drains until ctx ends. If it ends because the lease is lost, the next tenure begins, with
// metrics that count from zero, as after a restart.
func (t *tenures) Run(ctx context.Context) error {
	err := t.current.Load().drain(ctx)
	if errors.Is(context.Cause(ctx), errLostLease) {
		t.shown.withdraw()
		t.begin()
	}
	return err
}

// shown registers metrics, and can take them all back.
type shown struct {
	prometheus.Registerer
	metrics []prometheus.Collector
}

func (s *shown) MustRegister(metrics ...prometheus.Collector) {
	s.Registerer.MustRegister(metrics...)
	s.metrics = append(s.metrics, metrics...)
}

func (s *shown) withdraw() {
	for _, m := range s.metrics {
		s.Unregister(m)
	}
}
