package asgemu

import "net/http"

// Effect is what a fault does to a request.
type Effect int

const (
	// AccessDenied answers as if an IAM permission were missing.
	AccessDenied Effect = iota + 1
	// Throttled answers that there were too many requests.
	Throttled
	// Unavailable answers that the service has failed.
	Unavailable
	// Contention answers 500 ResourceContention: another change of the group is under way.
	Contention
	// Invalid answers 400 ValidationError, for no reason that the instances show.
	Invalid
	// Broken closes the connection without an answer.
	Broken
)

// Fault is a failure on demand.
type Fault struct {
	Effect Effect
	// Times is how many requests fail; 0 means all until ClearFaults.
	Times int
	// Action, such as DetachInstances, limits the fault; empty means every request.
	Action string
	// Instance limits the fault to requests that name it.
	Instance string
	// LoseReply lets the request take effect before it fails.
	LoseReply bool
}

type fault struct {
	Fault
	left int
}

// Fail makes requests that begin from now on fail. A request meets the oldest fault that applies to it.
func (s *Server) Fail(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &fault{Fault: f, left: f.Times})
}

// ClearFaults ends all faults.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// count notes the request and takes the first fault that applies to it. The caller holds the mutex.
func (s *Server) count(action string, named []string) *fault {
	s.requests[action]++
	s.largest[action] = max(s.largest[action], len(named))
	for _, f := range s.faults {
		if f.Times > 0 && f.left == 0 || f.Action != "" && f.Action != action || f.Instance != "" && !contains(named, f.Instance) {
			continue
		}
		f.left--
		return f
	}
	return nil
}

func (f *fault) answer(svc service, action string) *apiError {
	switch f.Effect {
	case AccessDenied:
		return svc.denied(action)
	case Throttled:
		return svc.throttled()
	case Unavailable:
		return svc.unavailable()
	case Contention:
		return &apiError{http.StatusInternalServerError, "ResourceContention", "You already have a pending update to an Auto Scaling resource."}
	case Invalid:
		return invalid("The request cannot be carried out.")
	}
	panic(http.ErrAbortHandler)
}
