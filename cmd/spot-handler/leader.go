package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// A leader that is killed costs at most leaseDuration and a retry, about six seconds
// of the 120: then another replica drains. A leader that cannot renew for
// renewDeadline stops by itself before that, so that there are never two. A replica
// writes the Lease once a second, which an API server does not notice.
const (
	leaseName     = "spot-handler"
	leaseDuration = 5 * time.Second
	renewDeadline = 3500 * time.Millisecond
	retryPeriod   = time.Second
)

var errLostLease = errors.New("lost the leader lease")

// lead waits for the lease, runs f as the leader, and releases the lease at the end.
// A lost lease is an error: the process ends and starts anew, with everything as it
// stands in the cluster.
func lead(ctx context.Context, c *clients, namespace string, reg prometheus.Registerer, logger zerolog.Logger, f func(context.Context) error) error {
	leader := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spot_handler_leader", Help: "1 while this replica is the one that drains.",
	})
	reg.MustRegister(leader)
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read hostname: %w", err)
	}
	identity := host + "_" + string(uuid.NewUUID())

	leading := make(chan context.Context, 1) // gets the context that ends with the lease
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: leaseName, Namespace: namespace},
			Client:     c.coordination,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true, Name: leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(lease context.Context) { leading <- lease },
			OnStoppedLeading: func() { leader.Set(0) },
		},
	})
	if err != nil {
		return fmt.Errorf("set up leader election: %w", err)
	}
	// The lease outlives ctx until f has ended: a successor must not start before.
	election, resign := context.WithCancel(context.WithoutCancel(ctx))
	var electing sync.WaitGroup
	electing.Go(func() { elector.Run(election) })
	defer electing.Wait()
	defer resign()

	select {
	case <-ctx.Done():
		return nil
	case lease := <-leading:
		leader.Set(1)
		logger.Info().Str("identity", identity).Msg("leading")
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(lease, cancel)()
		err := f(ctx)
		if lease.Err() != nil {
			return errLostLease
		}
		return err
	}
}

// leaseNamespace is the flag's, else the pod's own, else kube-system.
func leaseNamespace(cfg config) string {
	if cfg.LeaseNamespace != "" {
		return cfg.LeaseNamespace
	}
	b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if own := strings.TrimSpace(string(b)); err == nil && own != "" {
		return own
	}
	return "kube-system"
}
