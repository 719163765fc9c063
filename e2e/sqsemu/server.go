// Package sqsemu is Amazon SQS on the loopback interface, for tests, the demo and benchmarks.
//
// It speaks the AWS JSON 1.0 protocol of standard queues, as far as their consumers need it: long polling, deleting,
// visibility, redrive to a dead-letter queue and batches, with the limits and the typed errors of the real service.
// Queues are made, and messages sent, by methods of this package. Signatures are not checked.
//
// Where SQS promises little ("the message might not be deleted"), the emulator does what is harder on a consumer.
// It delivers a message twice only when Queue.Duplicate says so, and otherwise in the order in which messages become
// visible.
//
// The state is in memory under one mutex. Deleted messages are remembered until Close, for Queue.Messages and
// Queue.Deleted. All methods are safe for concurrent use.
package sqsemu

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"spot-handler/e2e/internal/faulty"
)

const (
	// account is the owner of all queues, as it appears in their addresses.
	account = "123456789012"
	region  = "us-east-1"

	// defaultVisibility is that of a queue whose attributes nobody has set.
	defaultVisibility = 30 * time.Second
)

// Server is one region's SQS. Its URL is the value for AWS_ENDPOINT_URL_SQS.
type Server struct {
	*faulty.Server

	mu     sync.Mutex
	queues map[string]*Queue
}

// Start serves on the loopback interface until Close. Like httptest.NewServer it panics if it cannot listen.
func Start() *Server {
	s := &Server{queues: map[string]*Queue{}}
	s.Server = faulty.Start(s, faulty.Options{})
	return s
}

// New returns a Server that does not listen: its ServeHTTP is called.
func New() *Server { return &Server{queues: map[string]*Queue{}, Server: faulty.New()} }

// QueueOptions are the attributes of a queue.
type QueueOptions struct {
	// Visibility is how long a receive hides a message, in whole seconds, unless it says so itself; 30 s by default.
	Visibility time.Duration
	// DeadLetters is the queue to which a message goes after it was received MaxReceives times; nil means none.
	DeadLetters *Queue
	MaxReceives int
}

// Queue returns the queue of that name, and makes it with default attributes if there is none.
func (s *Server) Queue(name string) *Queue { return s.CreateQueue(name, QueueOptions{}) }

// CreateQueue returns the queue of that name, and makes it with these attributes if there is none.
func (s *Server) CreateQueue(name string, o QueueOptions) *Queue {
	o.Visibility = cmp.Or(o.Visibility, defaultVisibility)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[name] == nil {
		s.queues[name] = &Queue{
			server:   s,
			name:     name,
			options:  o,
			messages: map[string]*message{},
			changed:  make(chan struct{}),
		}
	}
	return s.queues[name]
}

// find returns the queue of a URL. SQS goes by the path alone: a URL with another host, as seen through a tunnel,
// works.
func (s *Server) find(url string) (*Queue, *apiError) {
	if url == "" {
		return nil, errMissing("QueueUrl")
	}
	q := s.queues[url[strings.LastIndex(url, "/")+1:]]
	if q == nil {
		return nil, errQueueDoesNotExist()
	}
	return q, nil
}

// withQueue runs f on the queue of a URL under the lock.
func (s *Server) withQueue(url string, f func(*Queue) (any, *apiError)) (any, *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.find(url)
	if err != nil {
		return nil, err
	}
	return f(q)
}
