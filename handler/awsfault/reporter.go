package awsfault

import (
	"sync"
	"time"
)

// quiet is for how long a reason is not news again when it comes and goes.
const quiet = time.Minute

// A Reporter tells news from more of the same: a fault is worth a line in the log when its
// reason changes. The zero value is ready, and safe for concurrent use.
type Reporter struct {
	mu    sync.Mutex
	last  Reason
	said  map[Reason]time.Time
	owing bool // a fault was news whose end was not told
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
