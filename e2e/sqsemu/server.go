// Package sqsemu is Amazon SQS on the loopback interface, for tests, the demo and benchmarks.
//
// It speaks the AWS JSON 1.0 protocol for standard queues: sending, long polling, deleting, visibility, redrive to
// a dead-letter queue, retention and batches, with the limits and the typed errors of the real service. FIFO
// queues, encryption, tags, policies and signatures are not emulated; what is not emulated is refused or ignored as
// the comments say, never half done.
//
// Where SQS promises little ("the message might not be deleted"), the emulator does what is harder on a consumer.
// It delivers a message twice only when Queue.Duplicate says so, and otherwise in the order of arrival.
//
// The state is in memory under one mutex. Nothing ticks: the only timers are for the next message that becomes
// visible. Deleted messages are remembered until Close, for Queue.Messages and Queue.Deleted. All methods are safe
// for concurrent use.
package sqsemu

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
)

const (
	// account is the owner of all queues, as it appears in their addresses.
	account       = "123456789012"
	defaultRegion = "us-east-1"
)

// Options say where the emulator listens. The zero value suits tests.
type Options struct {
	// Addr is the loopback address to listen on; empty means a free port of 127.0.0.1.
	Addr string
	// Region appears in the ARNs of queues; it defaults to us-east-1.
	Region string
}

// Server is one region's SQS.
type Server struct {
	// URL is the endpoint, without a trailing slash: the value for AWS_ENDPOINT_URL_SQS.
	URL string

	region  string
	http    *http.Server
	stop    context.CancelFunc
	stopped chan struct{}

	mu       sync.Mutex
	queues   map[string]*Queue
	faults   []*fault
	requests map[string]int
}

// Start serves on the loopback interface until Close. Like httptest.NewServer it panics if it cannot listen, or if
// the address is not a loopback one: it checks no signatures and has no business on a network.
func Start(o Options) *Server {
	listener, err := listenLoopback(cmp.Or(o.Addr, "127.0.0.1:0"))
	if err != nil {
		panic(fmt.Sprintf("sqsemu: %v", err))
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{
		URL:      "http://" + listener.Addr().String(),
		region:   cmp.Or(o.Region, defaultRegion),
		stop:     stop,
		stopped:  make(chan struct{}),
		queues:   map[string]*Queue{},
		requests: map[string]int{},
	}
	s.http = &http.Server{
		Handler:     s,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	go func() {
		defer close(s.stopped)
		_ = s.http.Serve(listener) // always ErrServerClosed, by Close
	}()
	return s
}

// Close ends all connections, including long polls and hanging requests, and frees the port.
func (s *Server) Close() {
	s.stop()
	_ = s.http.Close()
	<-s.stopped

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		q.drop()
	}
}

// CreateQueue makes a queue as the API action of that name does: with the API's attributes (VisibilityTimeout,
// RedrivePolicy and so on), and returning the existing queue if it has the same ones.
func (s *Server) CreateQueue(name string, attributes map[string]string) (*Queue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, apiErr := s.createQueue(name, attributes)
	if apiErr != nil {
		return nil, fmt.Errorf("create queue %q: %w", name, apiErr)
	}
	return q, nil
}

// Queue returns the queue of that name, and makes it with default attributes if there is none. It panics on a name
// that SQS would refuse.
func (s *Server) Queue(name string) *Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[name]; q != nil {
		return q
	}
	q, err := s.createQueue(name, nil)
	if err != nil {
		panic(fmt.Sprintf("sqsemu: create queue %q: %v", name, err))
	}
	return q
}

// Requests returns how often an action, such as ReceiveMessage, was called, whatever the answer was.
func (s *Server) Requests(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[action]
}

func listenLoopback(addr string) (net.Listener, error) {
	tcp, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("resolve address %q: %w", addr, err)
	}
	if !tcp.IP.IsLoopback() {
		return nil, fmt.Errorf("address %q is not a loopback address", addr)
	}
	return net.ListenTCP("tcp", tcp)
}
