package awsfault

import (
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/rs/zerolog"
)

// HealthyFor is how long the last good reading vouches for a source of notices.
const HealthyFor = time.Minute

// Source is what is known of a source of notices: when it was last read, and what fails. It is
// safe for concurrent use.
type Source struct {
	what     string
	lastPoll prometheus.Gauge
	errors   *prometheus.CounterVec

	mu     sync.Mutex
	read   time.Time // zero: never
	failed time.Time // with err
	err    error     // the last fault
}

// NewSource returns what is known of the source of that name, and exposes it. Errors say what
// its readings do, such as "poll instance metadata".
func NewSource(reg prometheus.Registerer, name, what string, reasons []Reason) *Source {
	labels := prometheus.Labels{"source": name}
	f := promauto.With(reg)
	s := &Source{
		what: what,
		lastPoll: f.NewGauge(prometheus.GaugeOpts{
			Name:        "spot_handler_last_poll_timestamp_seconds",
			Help:        "When the source was last read to its end, in seconds since 1970.",
			ConstLabels: labels,
		}),
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name:        "spot_handler_source_errors_total",
			Help:        "Calls to the source that failed, or whose answer could not be used.",
			ConstLabels: labels,
		}, []string{"reason"}),
	}
	for _, r := range reasons {
		s.Errors(r)
	}
	return s
}

// Errors counts the faults of that reason.
func (s *Source) Errors(r Reason) prometheus.Counter { return s.errors.WithLabelValues(string(r)) }

// Fault counts every fault, and logs those that are news.
func (s *Source) Fault(log zerolog.Logger, r *Reporter, err error, text string) {
	reason := Of(err)
	s.Errors(reason).Inc()
	if r.Changed(reason) {
		log.Error().Err(err).Str("reason", string(reason)).Msg(text)
	}
}

// Failed notes that the source could not be read.
func (s *Source) Failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.failed = err, time.Now()
}

// Read notes until when all that the source says is known.
func (s *Source) Read(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.read = at
	s.lastPoll.Set(float64(at.UnixNano()) / 1e9)
}

// Healthy returns nil while the last reading is at most HealthyFor old; it is meant for readiness.
// Before the first has succeeded it returns an error: what has yet to start is not ready, though
// nothing is wrong with it.
func (s *Source) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	failing := s.failed.After(s.read)
	switch {
	case !s.read.IsZero() && time.Since(s.read) <= HealthyFor:
		return nil
	case s.read.IsZero() && !failing:
		return fmt.Errorf("%s: not yet done", s.what)
	case s.read.IsZero():
		return fmt.Errorf("%s: never succeeded: %w", s.what, s.err)
	case !failing: // such as where messages that cannot be accepted take all the room
		return fmt.Errorf("%s: last done at %s", s.what, s.read.UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("%s: last succeeded at %s: %w", s.what, s.read.UTC().Format(time.RFC3339), s.err)
}

// Pauses are those between attempts that fail: each twice as long as the one before, up to
// longest, give or take that part.
func Pauses(first, longest time.Duration, jitter float64) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: first, MaxInterval: longest, Multiplier: 2, RandomizationFactor: jitter,
	}
}
