package imdsemu

import (
	"net"
	"net/http"
	"strings"
)

// Effect is what a fault does to a request.
type Effect int

const (
	// Unauthorized answers 401 whatever the token.
	Unauthorized Effect = iota + 1
	// Throttled answers 429, as the link-local rate limit does.
	Throttled
	// Unavailable answers 503.
	Unavailable
	// Hang does not answer until the client leaves. If the fault is cleared first, the request is served after all.
	Hang
	// Reset breaks the connection with an RST.
	Reset
)

// Fault is a failure on demand.
type Fault struct {
	Effect Effect
	// Times is how many requests fail; 0 means all until ClearFaults.
	Times int
	// PathPrefix limits the fault to absolute paths with this prefix; a relative one is taken under MetadataPath.
	// Empty means every request.
	PathPrefix string
}

type fault struct {
	Fault
	left    int
	cleared chan struct{}
}

// Fail makes requests that begin from now on fail. Faults do not add up: a request meets the oldest one that
// applies to it, so two faults in a row take effect one after the other.
func (s *Server) Fail(f Fault) {
	if f.PathPrefix != "" {
		f.PathPrefix = absolute(f.PathPrefix)
	}
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

func (s *Server) takeFault(path string) *fault {
	for _, f := range s.faults {
		spent := f.Times > 0 && f.left == 0
		if spent || !strings.HasPrefix(path, f.PathPrefix) {
			continue
		}
		// A spent fault stays in the list: ClearFaults must still reach the requests that hang in it.
		f.left--
		return f
	}
	return nil
}

// play does what the fault says and reports whether the request should be served all the same.
func (f *fault) play(w http.ResponseWriter, r *http.Request) (serve bool) {
	switch f.Effect {
	case Unauthorized:
		refuse(w, http.StatusUnauthorized)
	case Throttled:
		refuse(w, http.StatusTooManyRequests)
	case Unavailable:
		refuse(w, http.StatusServiceUnavailable)
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
