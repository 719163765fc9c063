package main

import (
	"net/http"
	"sync/atomic"
	"time"
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
// concurrent use.
type rightOfWay struct {
	renewed atomic.Int64 // when the lease was last renewed, in ns; 0 while there is none
}

// set notes a renewal; a zero time that there is no lease to be renewed.
func (w *rightOfWay) set(at time.Time) {
	if at.IsZero() {
		w.renewed.Store(0)
		return
	}
	w.renewed.Store(at.UnixNano())
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
		g.wait(r)
	}
	return g.next.RoundTrip(r)
}

func (g giveWay) wait(r *http.Request) {
	end := time.NewTimer(giveWayFor)
	defer end.Stop()
	check := time.NewTicker(giveWayCheck)
	defer check.Stop()
	for g.way.late() {
		select {
		case <-r.Context().Done():
			return
		case <-end.C:
			return
		case <-check.C:
		}
	}
}
