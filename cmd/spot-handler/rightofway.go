package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// A leader that drains a burst can load a small API server so much that its own lease is
// not renewed in time. When a renewal is late everything else of the process waits a
// moment, so that it has the API server to itself.
const (
	// lateAfter is when a renewal counts as late: it is due every retryPeriod.
	lateAfter = 2 * retryPeriod
	// giveWayFor bounds how long a request waits for it; what is late for another reason
	// than load is not helped by waiting.
	giveWayFor   = 2 * time.Second
	giveWayCheck = 50 * time.Millisecond
)

// rightOfWay is the lease's, before all other requests. Its methods are safe for
// concurrent use; a nil one gives way to nobody.
type rightOfWay struct {
	renewed atomic.Int64 // when the lease was last renewed, in ns; 0 while there is none
}

// set notes a renewal; a zero time that there is no lease to be renewed.
func (w *rightOfWay) set(at time.Time) {
	switch {
	case w == nil:
	case at.IsZero():
		w.renewed.Store(0)
	default:
		w.renewed.Store(at.UnixNano())
	}
}

func (w *rightOfWay) late() bool {
	at := w.renewed.Load()
	return at != 0 && time.Since(time.Unix(0, at)) > lateAfter
}

// giveWay is a transport whose requests wait while the lease's renewal is late.
type giveWay struct {
	next http.RoundTripper
	way  *rightOfWay
}

func (g giveWay) RoundTrip(r *http.Request) (*http.Response, error) {
	if g.way.late() {
		// The error is of a wait that has lasted long enough, or of a request that has ended.
		_ = wait.PollUntilContextTimeout(r.Context(), giveWayCheck, giveWayFor, false, func(context.Context) (bool, error) {
			return !g.way.late(), nil
		})
	}
	return g.next.RoundTrip(r)
}
