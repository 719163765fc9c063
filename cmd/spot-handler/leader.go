package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// newLeader is the metric that says which replica drains. It is there from the start:
// that nobody leads is told by its sum.
func newLeader(reg prometheus.Registerer) prometheus.Gauge {
	leader := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spot_handler_leader", Help: "1 while this replica is the one that drains.",
	})
	reg.MustRegister(leader)
	return leader
}

// lead campaigns for the lease, runs f while it is held, and campaigns again when it is lost. It
// releases the lease at the end.
func lead(ctx context.Context, client leaseClient, namespace string, leader prometheus.Gauge, logger zerolog.Logger, f func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read hostname: %w", err)
	}
	l := &lease{client: client, namespace: namespace, identity: host + "_" + rand.Text(), logger: logger}
	for l.acquire(ctx) == nil { // else stopped before
		leader.Set(1)
		logger.Info().Str("identity", l.identity).Msg("leading")
		err := l.hold(ctx, f)
		leader.Set(0)
		if !errors.Is(err, errLostLease) {
			return err
		}
		logger.Warn().Err(err).Msg("leading no more, campaigning again")
	}
	return nil
}

// leaseNamespace is the flag's, else the pod's own, else kube-system.
func leaseNamespace(cfg settings) string {
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
