package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
)

// A leader that is killed costs at most leaseDuration and a retry, about seven seconds
// of the 120: then another replica drains. A leader that cannot renew for
// renewDeadline stops by itself before that, so there are never two; it is as
// long as can be, as an API server under a burst may take seconds to answer. A replica
// reads the Lease once a second, which an API server does not notice.
const (
	leaseName     = "spot-handler"
	leaseDuration = 6 * time.Second
	renewDeadline = 5 * time.Second
	retryPeriod   = time.Second

	// releaseTimeout bounds the release at the end: a read and a write.
	releaseTimeout = 2 * time.Second
)

var errLostLease = errors.New("lost the leader lease")

// leaseClient is the subset of the Leases API that a lease needs.
type leaseClient interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error)
}

// lease is a lock that one replica holds at a time, kept in a Lease object with the
// meaning that all of Kubernetes gives to it. client-go's leader election imports the
// whole clientset, and cluster.go says what that costs. It also counts the time until it gives
// up from when it sees a renewal, not from when the renewal was sent: beside an API server
// that is slow to answer, two could lead.
//
// Clocks need not agree: another's lease has run out when it has not changed for
// leaseDuration as measured here. Not safe for concurrent use.
type lease struct {
	client    leaseClient
	namespace string
	identity  string
	logger    zerolog.Logger

	seen   string    // resource version of another's lease
	seenAt time.Time // when it was first seen

	own     *coordinationv1.Lease // as we have last written it
	renewed time.Time             // when that write began: nobody else counts from earlier
}

// acquire returns nil when the lease is ours, or ctx's error.
func (l *lease) acquire(ctx context.Context) error {
	said := ""
	for {
		held, err := l.try(ctx, renewDeadline) // one that hangs is not waited for
		if held {
			return nil
		}
		another := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) // was faster
		if err != nil && !another && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			l.logger.Warn().Err(err).Msg("acquire lease")
		}
		if err := smithytime.SleepWithContext(ctx, jittered()); err != nil {
			return err
		}
	}
}

// hold keeps the lease while f runs, and releases it when f has ended, so the next leader does not
// start before. It returns f's error, or errLostLease; then f's context ends for that cause.
func (l *lease) hold(ctx context.Context, f func(context.Context) error) error {
	defer func() {
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

// keep renews the lease until ctx ends, and returns nil then. It returns
// errLostLease when another has it, or it could not be renewed for renewDeadline.
func (l *lease) keep(ctx context.Context) error {
	for {
		end := l.renewed.Add(renewDeadline)
		if smithytime.SleepWithContext(ctx, min(jittered(), time.Until(end))) != nil {
			return nil
		}
		held, err := l.try(ctx, min(renewDeadline/2, time.Until(end))) // one that hangs leaves time for another
		switch {
		case ctx.Err() != nil:
			return nil
		case held:
		case err == nil:
			return fmt.Errorf("%w: another replica holds it", errLostLease)
		case !time.Now().Before(end):
			return fmt.Errorf("%w: %w", errLostLease, err)
		}
	}
}

// release gives the lease up, so the next leader need not wait for its end. Nothing
// is lost if it fails.
func (l *lease) release(ctx context.Context) {
	current, err := l.client.Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil || holder(current) != l.identity {
		return
	}
	current.Spec.HolderIdentity, current.Spec.LeaseDurationSeconds = new(""), new(int32(1))
	if _, err := l.client.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
		l.logger.Debug().Err(err).Msg("release lease")
	}
}

// try takes or renews the lease within a time. False without an error means that it is another's.
func (l *lease) try(ctx context.Context, within time.Duration) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	current, err := l.own, error(nil) // one request: what we wrote last is still there, unless another was faster
	l.own = nil                       // what comes of a write that fails is not known: the next attempt reads the lease first
	if current == nil {
		current, err = l.client.Get(ctx, leaseName, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		current, err = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName, Namespace: l.namespace}}, nil
	}
	if err != nil {
		return false, fmt.Errorf("read lease: %w", err)
	}
	began := time.Now()
	now, seconds := metav1.NewMicroTime(began), int32(leaseDuration/time.Second)
	if h := holder(current); h != l.identity {
		if l.seen != current.ResourceVersion {
			l.seen, l.seenAt = current.ResourceVersion, began
		}
		if h != "" && began.Sub(l.seenAt) < leaseDuration {
			return false, nil
		}
		transitions := ptr.Deref(current.Spec.LeaseTransitions, -1) + 1 // 0 of a new one
		current.Spec.LeaseTransitions, current.Spec.AcquireTime = &transitions, &now
	}
	current.Spec.HolderIdentity, current.Spec.LeaseDurationSeconds, current.Spec.RenewTime = &l.identity, &seconds, &now
	if current.ResourceVersion == "" {
		current, err = l.client.Create(ctx, current, metav1.CreateOptions{})
	} else { // of two, one fails
		current, err = l.client.Update(ctx, current, metav1.UpdateOptions{})
	}
	if err != nil {
		return false, fmt.Errorf("write lease: %w", err)
	}
	l.own, l.renewed = current, began
	return true, nil
}

func holder(l *coordinationv1.Lease) string { return ptr.Deref(l.Spec.HolderIdentity, "") }

// jittered is about retryPeriod, so replicas do not come together.
func jittered() time.Duration { return wait.Jitter(retryPeriod*9/10, 0.2) }

// newLeader is the metric that says which replica drains. It is there from the start:
// that nobody leads is shown by its sum.
func newLeader(reg prometheus.Registerer) prometheus.Gauge {
	return promauto.With(reg).NewGauge(prometheus.GaugeOpts{
		Name: "spot_handler_leader",
		Help: "1 while this replica is the one that drains.",
	})
}

// lead campaigns for the lease, runs f while it is held, and campaigns again when it is lost. It
// releases the lease at the end.
func lead(
	ctx context.Context, client leaseClient, namespace string, leader prometheus.Gauge, logger zerolog.Logger,
	f func(context.Context) error,
) error {
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

// leaseNamespace is the pod's own, or kube-system outside of a pod.
func leaseNamespace(cfg settings) string {
	return cmp.Or(cfg.podNamespace, accountNamespace(), "kube-system")
}

// accountNamespace is the namespace of the pod's service account, "" outside of a pod.
func accountNamespace() string {
	b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
