package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
)

// releaseTimeout bounds the release of the lease at the end: a read and a write.
const releaseTimeout = 2 * time.Second

// newLeader is the metric that says which replica drains. It is there from the start:
// that nobody leads is told by its sum.
func newLeader(reg prometheus.Registerer) prometheus.Gauge {
	leader := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spot_handler_leader", Help: "1 while this replica is the one that drains.",
	})
	reg.MustRegister(leader)
	return leader
}

// lead waits for the lease, runs f as the leader, and releases the lease at the end.
// A lost lease is an error: the process ends and starts again, with everything as it
// stands in the cluster.
func lead(ctx context.Context, client leaseClient, namespace string, leader prometheus.Gauge, logger zerolog.Logger, way *rightOfWay, f func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read hostname: %w", err)
	}
	l := &lease{client: client, namespace: namespace, identity: host + "_" + rand.Text(), logger: logger, way: way}
	if err := l.acquire(ctx); err != nil {
		return nil // stopped before
	}
	leader.Set(1)
	defer leader.Set(0)
	logger.Info().Str("identity", l.identity).Msg("leading")
	defer func() { // after f has ended: a successor must not start before
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		l.release(bounded)
	}()

	// The lease is kept until f has ended, which may be a moment after ctx.
	kept, done := context.WithCancel(context.WithoutCancel(ctx))
	g, leading := errgroup.WithContext(ctx)
	g.Go(func() error { return l.keep(kept) })
	g.Go(func() error {
		defer done()
		return f(leading)
	})
	return g.Wait()
}

// leaseNamespace is the flag's, else the pod's own, else kube-system.
func leaseNamespace(cfg config) string {
	return cmp.Or(cfg.leaseNamespace, cfg.podNamespace, accountNamespace(), "kube-system")
}

// accountNamespace is the namespace of the pod's service account, "" outside of a pod.
func accountNamespace() string {
	b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
