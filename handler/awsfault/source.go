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
	if !s.read.IsZero() && time.Since(s.read) <= HealthyFor {
		return nil
	}
	when := "not yet done"
	if !s.read.IsZero() {
		when = "last done at " + s.read.UTC().Format(time.RFC3339)
	}
	if s.failed.After(s.read) {
		return fmt.Errorf("%s: %s: %w", s.what, when, s.err)
	}
	return fmt.Errorf("%s: %s", s.what, when) // such as where messages that cannot be accepted take all the room
}

// Pauses are those between attempts that fail: each twice as long as the one before, up to
// longest, give or take that part.
func Pauses(first, longest time.Duration, jitter float64) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: first, MaxInterval: longest, Multiplier: 2, RandomizationFactor: jitter,
	}
}

// quiet is for how long a reason is not news again when it comes and goes.
const quiet = time.Minute

// A Reporter separates news from more of the same: a fault is worth a line in the log when its
// reason changes. The zero value is ready, and safe for concurrent use.
type Reporter struct {
	mu    sync.Mutex
	last  Reason
	said  map[Reason]time.Time
	owing bool // a fault was news whose end was not reported
}

// Changed reports whether a fault of that reason is news.
func (r *Reporter) Changed(now Reason) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == now {
		return false
	}
	r.last = now
	if t, ok := r.said[now]; ok && time.Since(t) < quiet {
		return false
	}
	if r.said == nil {
		r.said = make(map[Reason]time.Time)
	}
	r.said[now] = time.Now()
	r.owing = true
	return true
}

// Recovered reports whether it is news that nothing fails.
func (r *Reporter) Recovered() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	owing := r.owing
	r.last, r.owing = "", false
	return owing
}

// maxDenials bounds the calls that are remembered. Beyond that all are forgotten, and
// reported again.
const maxDenials = 1000

// Denials remembers hopeless calls: each is reported once, and need not be made for every
// node. The zero value is ready, and safe for concurrent use.
type Denials struct {
	mu   sync.Mutex
	seen map[string]denial // by call
}

type denial struct {
	err error
	at  time.Time
}

// Note keeps what came of a call, which the caller names. Where it is hopeless, it returns
// the reason, and whether that is news.
func (d *Denials) Note(call string, err error) (reason string, news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	reason, hopeless := Hopeless(err)
	if !hopeless {
		if r := Of(err); r == "" || r == Refused { // the role allows it
			delete(d.seen, call)
		}
		return "", false
	}
	if d.seen == nil || len(d.seen) >= maxDenials {
		d.seen = map[string]denial{}
	}
	_, again := d.seen[call]
	d.seen[call] = denial{err: err, at: time.Now()}
	return reason, !again
}

// Standing is the error of a hopeless call, if it was noted less than age ago; else nil.
func (d *Denials) Standing(call string, age time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.seen[call]; time.Since(s.at) < age {
		return s.err
	}
	return nil
}
