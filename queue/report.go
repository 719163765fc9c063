package queue

import (
	"sync"
	"time"
)

// quiet is for how long a reason is not logged again when it comes and goes.
const quiet = time.Minute

// A reporter tells news from more of the same: a fault is logged when its reason
// changes. The zero value is ready.
type reporter struct {
	mu    sync.Mutex
	last  reason
	said  map[reason]time.Time
	owing bool // a fault was logged whose end was not
}

func (r *reporter) changed(now reason) bool {
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
		r.said = make(map[reason]time.Time)
	}
	r.said[now] = time.Now()
	r.owing = true
	return true
}

func (r *reporter) recovered() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	owing := r.owing
	r.last, r.owing = "", false
	return owing
}

// fail counts every fault and logs the news.
func (c *Consumer) fail(r *reporter, err error, text string) {
	reason := reasonOf(err)
	c.metrics.errors(reason).Inc()
	if r.changed(reason) {
		c.log.Error().Err(err).Str("reason", string(reason)).Msg(text)
	}
}

func (c *Consumer) recover(r *reporter, text string) {
	if r.recovered() {
		c.log.Info().Str("queue", c.queue).Msg(text)
	}
}
