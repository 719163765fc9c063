package faulty

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Fault is a failure on demand.
type Fault struct {
	// Action limits the fault: to requests of that action, or, if it ends in a slash, to those whose action, which
	// is a path then, begins with it. Empty means every request.
	Action string
	// Instance limits the fault to requests that name it.
	Instance string
	// Share is how much of these requests the fault hits, from 0 to 1; 0 means all.
	Share float64
	// Times is how many requests fail; 0 means all, for as long as the fault lasts.
	Times int

	// Delay is how long a request waits first, see [Unanswered]. A request that still waits when the fault ends is
	// served.
	Delay time.Duration
	// Effect is what happens to the request then; nil means that it is served.
	Effect Effect
	// LoseReply lets the request take effect before it fails. Without an Effect, the connection breaks. A GET, which
	// has no effect, is served.
	LoseReply bool
}

// Effect answers a request in place of the server.
type Effect = http.HandlerFunc

// Unanswered is a Delay that lasts until the client leaves, or the fault ends.
const Unanswered = time.Duration(math.MaxInt64)

// active is a fault that has been requested.
type active struct {
	Fault
	left  int
	ended chan struct{}
}

// Fail makes requests that begin from now on fail, until the returned function is called. Faults do not add up: a
// request meets the oldest one that applies to it, so two faults with Times take effect one after the other.
func (s *Server) Fail(f Fault) (end func()) {
	a := &active{Fault: f, left: f.Times, ended: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, a)
	return func() { s.endFaults(func(other *active) bool { return other == a }) }
}

// ClearFaults ends all faults.
func (s *Server) ClearFaults() { s.endFaults(func(*active) bool { return true }) }

func (s *Server) endFaults(which func(*active) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = slices.DeleteFunc(s.faults, func(a *active) bool {
		if !which(a) {
			return false
		}
		close(a.ended)
		return true
	})
}

// Serve counts a request as one of that action, and lets next answer it unless a fault applies. The instances are
// those that the request names.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, action string, instances []string, next http.HandlerFunc) {
	f := s.meet(action, instances)
	if f == nil {
		next(w, r)
		return
	}
	lost := f.LoseReply && r.Method != http.MethodGet
	if lost {
		s.serveUnheard(r, next)
	}
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-f.ended:
			if !lost {
				next(w, r)
				return
			}
		case <-r.Context().Done():
			panic(http.ErrAbortHandler) // an empty answer would still be one
		}
	}
	switch {
	case f.Effect != nil && (lost || !f.LoseReply):
		f.Effect(w, r)
	case lost:
		Reset(w, r)
	default:
		next(w, r)
	}
}

// meet counts the request and returns the fault that it meets, if any. Both happen under one lock, so a fault for n
// requests hits exactly n.
func (s *Server) meet(action string, instances []string) *active {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[action]++
	for _, f := range s.faults {
		if f.applies(action, instances) {
			f.left--
			return f
		}
	}
	return nil
}

func (a *active) applies(action string, instances []string) bool {
	switch {
	case a.Times > 0 && a.left == 0: // it stays in the list, for the requests that wait
		return false
	case a.Action != "" && a.Action != action && !(strings.HasSuffix(a.Action, "/") && strings.HasPrefix(action, a.Action)):
		return false
	case a.Instance != "" && !slices.Contains(instances, a.Instance):
		return false
	}
	return a.Share == 0 || rand.Float64() < a.Share
}

// serveUnheard serves a request even if its client leaves, and drops the answer.
func (s *Server) serveUnheard(r *http.Request, next http.HandlerFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	defer context.AfterFunc(s.closed, cancel)()
	next(unheard{}, r.WithContext(ctx))
}

// unheard drops an answer.
type unheard struct{}

func (unheard) Header() http.Header         { return http.Header{} }
func (unheard) WriteHeader(int)             {}
func (unheard) Write(p []byte) (int, error) { return len(p), nil }
