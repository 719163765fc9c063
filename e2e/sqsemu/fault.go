package sqsemu

import (
	"net"
	"net/http"
)

// Effect is what a fault does to a request.
type Effect int

const (
	// AccessDenied answers 403 AccessDenied, as if an IAM permission were missing.
	AccessDenied Effect = iota + 1
	// Unavailable answers 503 ServiceUnavailable.
	Unavailable
	// RequestThrottled answers 403 RequestThrottled, the throttling error of SQS's own model.
	RequestThrottled
	// Throttling answers 400 ThrottlingException, the throttling error that all AWS services share.
	Throttling
	// Hang does not answer until the client leaves. If the fault is cleared first, the request is answered after
	// all.
	Hang
	// Reset breaks the connection with an RST.
	Reset
)

// Fault is a failure on demand.
type Fault struct {
	Effect Effect
	// Times is how many requests fail; 0 means all until ClearFaults.
	Times int
	// Action, such as DeleteMessageBatch, limits the fault; empty means every request.
	Action string
	// LoseReply lets the request take effect before it fails: messages are received or deleted, and the client does
	// not learn of it.
	LoseReply bool
}

type fault struct {
	Fault
	left    int
	cleared chan struct{}
}

// Fail makes requests that begin from now on fail. Faults do not add up: a request meets the oldest one that
// applies to it, so two faults in a row take effect one after the other.
func (s *Server) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &fault{Fault: f, left: f.Times, cleared: make(chan struct{})})
}

// ClearFaults ends all faults and lets hanging requests through.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		close(f.cleared)
	}
	s.faults = nil
}

// count notes the request and takes the first fault that applies to it. Both happen under one lock, so a fault for
// n requests hits exactly n.
func (s *Server) count(action string) *fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[action]++
	for _, f := range s.faults {
		spent := f.Times > 0 && f.left == 0
		if spent || f.Action != "" && f.Action != action {
			continue
		}
		// A spent fault stays in the list: ClearFaults must still reach the requests that hang in it.
		f.left--
		return f
	}
	return nil
}

// play does what the fault says and reports whether the request should be answered all the same.
func (f *fault) play(w http.ResponseWriter, r *http.Request, action string) (answer bool) {
	switch f.Effect {
	case AccessDenied:
		errAccessDenied(action).write(w)
	case Unavailable:
		errUnavailable().write(w)
	case RequestThrottled:
		errRequestThrottled().write(w)
	case Throttling:
		errThrottling().write(w)
	case Hang:
		select {
		case <-f.cleared:
			return true
		case <-r.Context().Done():
			panic(http.ErrAbortHandler) // an empty answer would still be one
		}
	case Reset:
		reset(w)
	}
	return false
}

// reset closes the connection so that the peer gets an RST and not the end of a stream.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
