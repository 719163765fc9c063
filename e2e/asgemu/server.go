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
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Options say how the emulator behaves. The zero value suits tests.
type Options struct {
	// Addr is the loopback address to listen on; empty means a free port of 127.0.0.1.
	Addr string

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

// Server is one region's Auto Scaling and EC2.
type Server struct {
	// URL is the endpoint of both services, for AWS_ENDPOINT_URL_AUTO_SCALING and AWS_ENDPOINT_URL_EC2.
	URL string

	opts    Options
	http    *http.Server
	ctx     context.Context
	stop    context.CancelFunc
	stopped chan struct{}

	mu        sync.Mutex
	groups    map[string]*group
	instances map[string]*instance
	waits     []*wait
	faults    []*fault
	requests  map[string]int
	largest   map[string]int
}

// Start serves on the loopback interface until Close. Like httptest.NewServer it panics if it cannot listen, or if
// the address is not a loopback one: it has no business on a network.
func Start(o Options) *Server {
	tcp, err := net.ResolveTCPAddr("tcp", cmp.Or(o.Addr, "127.0.0.1:0"))
	if err == nil && !tcp.IP.IsLoopback() {
		err = fmt.Errorf("address %s is not a loopback address", tcp)
	}
	if err != nil {
		panic(fmt.Sprintf("asgemu: %v", err))
	}
	listener, err := net.ListenTCP("tcp", tcp)
	if err != nil {
		panic(fmt.Sprintf("asgemu: %v", err))
	}
	o.Boot, o.Leave = cmp.Or(o.Boot, 100*time.Millisecond), cmp.Or(o.Leave, 100*time.Millisecond)
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{
		URL: "http://" + listener.Addr().String(), opts: o, ctx: ctx, stop: stop, stopped: make(chan struct{}),
		groups: map[string]*group{}, instances: map[string]*instance{}, requests: map[string]int{}, largest: map[string]int{},
	}
	s.http = &http.Server{Handler: s, BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		defer close(s.stopped)
		_ = s.http.Serve(listener) // always ErrServerClosed, by Close
	}()
	return s
}

// Close ends all connections and frees the port. After that nothing boots or ends.
func (s *Server) Close() {
	s.stop()
	_ = s.http.Close()
	<-s.stopped
}

// Requests returns how often an action, such as DetachInstances, was called, whatever the answer was.
func (s *Server) Requests(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[action]
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
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ctx.Err() == nil {
			f()
		}
	})
}
