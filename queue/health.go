package queue

import (
	"fmt"
	"sync"
	"time"
)

// healthyFor is how long the last good receive vouches for the source: three long
// polls.
const healthyFor = time.Minute

// health is what Healthy reads while receivers write.
type health struct {
	mu       sync.Mutex
	received time.Time
	err      error // the last fault
}

func (h *health) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *health) succeeded(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.received, h.err = at, nil
}

// Healthy returns nil while a receive call, empty or not, succeeded within the last
// minute; it is meant for readiness. Before the first has succeeded it returns an error: a
// consumer that has yet to start is not ready, though nothing is wrong with it.
func (c *Consumer) Healthy() error {
	c.health.mu.Lock()
	defer c.health.mu.Unlock()
	last, err := c.health.received, c.health.err
	switch {
	case !last.IsZero() && time.Since(last) <= healthyFor:
		return nil
	case last.IsZero() && err == nil:
		return fmt.Errorf("receive from queue %s: not yet done", c.queue)
	case last.IsZero():
		return err
	case err == nil: // messages that cannot be accepted take all the room
		return fmt.Errorf("receive from queue %s: last done at %s", c.queue, last.UTC().Format(time.RFC3339))
	}
	return fmt.Errorf("last received at %s: %w", last.UTC().Format(time.RFC3339), err)
}
