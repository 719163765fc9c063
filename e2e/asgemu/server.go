// Package asgemu is Amazon EC2 Auto Scaling, and the part of EC2 that goes with it, on the loopback interface, for
// tests.
//
// It speaks the AWS Query protocol of Auto Scaling and the EC2 Query protocol, with the limits, the states and the
// errors of the real services: groups keep their desired size, a detached instance is replaced, an instance can be
// detached once, one bad id fails a whole call, a group waits at its lifecycle hooks. Scaling policies, load
// balancers, tags and prices are not emulated. Requests have to carry a signature for the right service; it is not
// verified.
//
// What takes minutes in EC2 takes as long as Options say. The state is in memory under one mutex. All methods are
// safe for concurrent use.
package asgemu

import (
	"cmp"
	"sync"
	"time"

	"spot-handler/e2e/internal/faulty"
)

// Options say how the emulator behaves. The zero value suits tests.
type Options struct {
	// Boot is how long a launched instance is Pending; 0 is 100 ms.
	Boot time.Duration
	// Leave is how long a detached instance is still listed, as Detaching; 0 is 100 ms.
	Leave time.Duration

	// Waiting is called when a group begins to wait at a lifecycle hook; that is when AWS sends the message.
	Waiting func(Wait)

	// Booted is called when a launched instance comes into service: this is where its Node joins. Ended is called
	// when an instance has been terminated. Each call has a goroutine of its own; they may be nil.
	Booted, Ended func(Instance)
}

// Server is one region's Auto Scaling and EC2. Its URL is the endpoint of both services, for
// AWS_ENDPOINT_URL_AUTO_SCALING and AWS_ENDPOINT_URL_EC2.
type Server struct {
	*faulty.Server

	opts Options

	mu        sync.Mutex
	groups    map[string]*group
	instances map[string]*instance
	waits     []*wait
	largest   map[string]int
}

// Start serves on the loopback interface until Close, after which nothing boots or ends. Like httptest.NewServer it
// panics if it cannot listen.
func Start(o Options) *Server {
	s := New(o)
	s.Server = faulty.Start(s, faulty.Options{})
	return s
}

// New returns a Server that does not listen: its ServeHTTP is called.
func New(o Options) *Server {
	o.Boot, o.Leave = cmp.Or(o.Boot, 100*time.Millisecond), cmp.Or(o.Leave, 100*time.Millisecond)
	return &Server{
		Server:    faulty.New(),
		opts:      o,
		groups:    map[string]*group{},
		instances: map[string]*instance{},
		largest:   map[string]int{},
	}
}

// Largest returns the most instances, or groups, that one call of the action named.
func (s *Server) Largest(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.largest[action]
}

// after calls f under the mutex once d has passed, unless the server has been closed.
func (s *Server) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		select {
		case <-s.Closed():
		default:
			s.mu.Lock()
			defer s.mu.Unlock()
			f()
		}
	})
}
