package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// fakeLeases is a Lease with optimistic locking; stories have the API server's own.
type fakeLeases struct {
	mu      sync.Mutex
	lease   *coordinationv1.Lease
	version byte
	fail    error
}

var _ leaseClient = (*fakeLeases)(nil)
var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (f *fakeLeases) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	if f.lease == nil {
		return nil, apierrors.NewNotFound(leases, leaseName)
	}
	return f.lease.DeepCopy(), nil
}

func (f *fakeLeases) Create(_ context.Context, l *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lease != nil {
		return nil, apierrors.NewAlreadyExists(leases, leaseName)
	}
	return f.store(l), nil
}

func (f *fakeLeases) Update(_ context.Context, l *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	if f.lease == nil || f.lease.ResourceVersion != l.ResourceVersion {
		return nil, apierrors.NewConflict(leases, leaseName, errors.New("changed"))
	}
	return f.store(l), nil
}

func (f *fakeLeases) store(l *coordinationv1.Lease) *coordinationv1.Lease {
	f.version++
	f.lease = l.DeepCopy()
	f.lease.ResourceVersion = string('a' + rune(f.version))
	return f.lease.DeepCopy()
}

func (f *fakeLeases) holder() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return holder(f.lease)
}

func (f *fakeLeases) breakDown(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = err
}

// slowLeases takes its time for every request, up to the request's own.
type slowLeases struct {
	leaseClient
	takes time.Duration
	hang  int // so many requests are never answered
}

func (s *slowLeases) wait(ctx context.Context) error {
	takes := s.takes
	if s.hang > 0 {
		s.hang--
		takes = time.Hour
	}
	select {
	case <-time.After(takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	return s.leaseClient.Get(ctx, name, o)
}

func (s *slowLeases) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if s.hang > 0 {
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
	}
	return s.leaseClient.Update(ctx, l, o)
}

func (s *slowLeases) Create(ctx context.Context, l *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	written, err := s.leaseClient.Create(ctx, l, o) // it is written, and the answer is late
	if late := s.wait(ctx); late != nil {
		return nil, late
	}
	return written, err
}

func newTestLease(f leaseClient, identity string) *lease {
	return &lease{client: f, namespace: "kube-system", identity: identity, logger: zerolog.Nop()}
}

func TestLeaseOfADeadHolderRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLeases{}
		if err := newTestLease(f, "dead").acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := newTestLease(f, "next").acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < leaseDuration || took > leaseDuration+2*retryPeriod {
			t.Errorf("taken over after %s, want %s and a retry", took, leaseDuration)
		}
		if n := *f.lease.Spec.LeaseTransitions; n != 1 {
			t.Errorf("%d transitions, want 1", n)
		}
	})
}

func TestLeaseOfALivingHolderIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLeases{}
		alive := newTestLease(f, "alive")
		if err := alive.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() { _ = alive.keep(ctx) }()
		if err := newTestLease(f, "next").acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want no lease within the hour", err)
		}
	})
}

func TestLeaseIsLostBeforeItRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLeases{}
		l := newTestLease(f, "a")
		if err := l.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.breakDown(errors.New("connection refused"))
		start := time.Now()
		if err := l.keep(t.Context()); !errors.Is(err, errLostLease) {
			t.Errorf("error %v, want a lost lease", err)
		}
		if took := time.Since(start); took >= leaseDuration {
			t.Errorf("gave up after %s, when another may already have it", took)
		}
	})
}

// A connection that died without a word costs an attempt, not the succession.
func TestLeaseIsAcquiredAfterARequestThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestLease(&slowLeases{leaseClient: &fakeLeases{}, hang: 1}, "a")
		start := time.Now()
		if err := l.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > renewDeadline+2*retryPeriod {
			t.Errorf("acquired after %s, want one lost attempt and a retry", took)
		}
	})
}

// Likewise of the leader: a renewal that hangs leaves time for another, so the lease is kept.
func TestLeaseIsKeptAfterARequestThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowLeases{leaseClient: &fakeLeases{}}
		l := newTestLease(slow, "a")
		if err := l.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		slow.hang = 1
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := l.keep(ctx); err != nil {
			t.Error(err)
		}
		if slow.hang != 0 {
			t.Error("no renewal has hung")
		}
	})
}

// Others count from when the lease was written, which may be long before we see it.
func TestLeaseAcquiredSlowlyIsLostBeforeItRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLeases{}
		slow := &slowLeases{leaseClient: f, takes: 2 * time.Second}
		l := newTestLease(slow, "a")
		start := time.Now()
		if err := l.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.breakDown(errors.New("connection refused"))
		if err := l.keep(t.Context()); !errors.Is(err, errLostLease) {
			t.Errorf("error %v, want a lost lease", err)
		}
		written := start.Add(slow.takes) // after the read
		if took := time.Since(written); took >= leaseDuration {
			t.Errorf("gave up %s after the lease was written, when another may already have it", took)
		}
	})
}

func TestLeaseTakenByAnotherIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLeases{}
		l := newTestLease(f, "a")
		if err := l.acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		other := f.lease.DeepCopy()
		name := "b"
		other.Spec.HolderIdentity = &name
		f.store(other)
		if err := l.keep(t.Context()); !errors.Is(err, errLostLease) {
			t.Errorf("error %v, want a lost lease", err)
		}
	})
}

// A leader that stops releases the lease after its work has ended, not before.
func TestLeadReleasesAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeLeases{}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, stop)
		err := lead(ctx, f, "kube-system", newLeader(prometheus.NewRegistry()), zerolog.Nop(), func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(10 * time.Second) // the last acts; longer than the lease lasts
			if f.holder() == "" {
				t.Error("released while the leader still works")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if h := f.holder(); h != "" {
			t.Errorf("held by %q after the end", h)
		}
	})
}

// A leader that has lost its lease stops, and leads again when it gets one. Another may have led
// meanwhile.
func TestLeadCampaignsAgain(t *testing.T) {
	other := "other"
	away := errors.New("connection refused")
	for name, disturb := range map[string]func(*fakeLeases){
		"the API server is unreachable": func(f *fakeLeases) {
			f.breakDown(away)
			time.AfterFunc(time.Minute, func() { f.breakDown(nil) })
		},
		"another takes it": func(f *fakeLeases) {
			f.mu.Lock()
			defer f.mu.Unlock()
			taken := f.lease.DeepCopy()
			taken.Spec.HolderIdentity = &other
			f.store(taken)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeLeases{}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				leader := newLeader(prometheus.NewRegistry())
				leads := func() bool {
					var metric dto.Metric
					return leader.Write(&metric) == nil && metric.GetGauge().GetValue() == 1
				}
				var leaderships, under atomic.Int32
				done := make(chan error)
				go func() {
					done <- lead(ctx, f, "kube-system", leader, zerolog.Nop(), func(ctx context.Context) error {
						leaderships.Add(1)
						defer under.Add(-1)
						if n := under.Add(1); n > 1 || !leads() {
							t.Errorf("%d leaderships at once, and a leader: %t", n, leads())
						}
						<-ctx.Done()
						return nil
					})
				}()
				time.Sleep(time.Minute)
				synctest.Wait()
				first := f.holder()
				disturb(f)
				time.Sleep(leaseDuration)
				synctest.Wait()
				if leads() || under.Load() != 0 {
					t.Error("still leads after the lease has run out")
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if !leads() || leaderships.Load() != 2 || f.holder() != first {
					t.Errorf("a leader: %t, after %d leaderships, and %q holds the lease; want it to lead again", leads(), leaderships.Load(), f.holder())
				}
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if leads() || f.holder() != "" {
					t.Errorf("after the end %q holds the lease", f.holder())
				}
			})
		})
	}
}

// An error of the work itself is no matter of the lease.
func TestLeadEndsWithItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		err := lead(t.Context(), &fakeLeases{}, "kube-system", newLeader(prometheus.NewRegistry()), zerolog.Nop(), func(context.Context) error { return broken })
		if !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	})
}
