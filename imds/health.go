package imds

import (
	"fmt"
	"sync"
	"time"
)

// healthyFor is how long the last good poll vouches for the source.
const healthyFor = time.Minute

// health is what Healthy reads while Run writes.
type health struct {
	mu   sync.Mutex
	read time.Time // until when every path was known; zero before
	err  error     // the last fault
}

func (h *health) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *health) succeeded(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.read = at
}

// Healthy returns nil while no path has failed for more than a minute; it is meant
// for readiness. Before the first poll has succeeded it returns an error: a poller that has
// yet to start is not ready, though nothing is wrong with it.
func (p *Poller) Healthy() error {
	p.health.mu.Lock()
	defer p.health.mu.Unlock()
	last, err := p.health.read, p.health.err
	switch {
	case !last.IsZero() && time.Since(last) <= healthyFor:
		return nil
	case last.IsZero() && err == nil:
		return fmt.Errorf("poll instance metadata: not yet done")
	case last.IsZero():
		return fmt.Errorf("poll instance metadata: never succeeded: %w", err)
	case err == nil:
		return fmt.Errorf("poll instance metadata: last done at %s", last.UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("poll instance metadata: last succeeded at %s: %w", last.UTC().Format(time.RFC3339), err)
}

// settleHealth notes until when every path was known, once all have been read.
func (p *Poller) settleHealth() {
	oldest := time.Now()
	for _, w := range p.watches {
		oldest = earlier(w.current(), oldest)
	}
	if oldest.IsZero() {
		return
	}
	p.health.succeeded(oldest)
	p.metrics.lastPoll.Set(float64(oldest.UnixNano()) / 1e9)
}
