package sqsemu

import (
	"cmp"
	"container/list"
	"context"
	"crypto/md5"
	"encoding/hex"
	"slices"
	"time"
)

// State is where a message is in its life.
type State string

const (
	// Visible messages are delivered to the next ReceiveMessage.
	Visible State = "visible"
	// Delayed messages were sent with a delay that has not passed.
	Delayed State = "delayed"
	// InFlight messages were received and are neither deleted nor visible again.
	InFlight State = "in-flight"
	// Deleted messages were deleted by a consumer, or purged.
	Deleted State = "deleted"
	// Expired messages outlived the retention period.
	Expired State = "expired"
)

// Message is a snapshot of a message.
type Message struct {
	ID   string
	Body string
	// Sent is the time from which its age counts.
	Sent time.Time
	// ReceiveCount is how often it was delivered, duplicates included.
	ReceiveCount int
	State        State
	// DeletedAt is when it was first deleted, purged or found to be expired; zero for a live message.
	DeletedAt time.Time
}

// message is a message of a queue. It is in the list of visible ones, or in the heap of hidden ones, or gone.
type message struct {
	Message
	seq         int // order of arrival
	md5         string
	attributes  map[string]messageAttribute
	trace       string // AWSTraceHeader
	firstTaken  time.Time
	taken       time.Time
	handles     []string // of the latest receive, and of its duplicate if there was one
	deadLetters string   // ARN of the queue whose consumers gave it up

	visible   *list.Element
	visibleAt time.Time
	hidden    int // index in the heap, or -1
}

func (m *message) gone() bool { return m.State == Deleted || m.State == Expired }

// Queue is a standard queue. Its methods take effect at once, without a request.
type Queue struct {
	server     *Server
	name       string
	attributes *attributes
	created    time.Time
	modified   time.Time
	purged     time.Time
	dropped    bool

	messages map[string]*message // including those that are gone
	living   int
	arrivals int
	visible  *list.List // of *message, next to deliver first
	hidden   hiddenHeap
	wakeUp   *time.Timer // fires when the first hidden message becomes visible

	waiters    *list.List // of chan struct{}, one per long poll
	duplicates int        // how many messages are still to be delivered twice
	copies     []*message // second deliveries that are due
	emptied    chan struct{}
}

func newQueue(s *Server, name string, a *attributes) *Queue {
	now := time.Now()
	q := &Queue{
		server: s, name: name, attributes: a, created: now, modified: now,
		messages: map[string]*message{}, visible: list.New(), waiters: list.New(), emptied: make(chan struct{}),
	}
	q.wakeUp = time.AfterFunc(time.Hour, q.wakeForHidden)
	q.wakeUp.Stop()
	return q
}

// Name returns the queue's name.
func (q *Queue) Name() string { return q.name }

// URL returns the queue's URL, which the API takes as QueueUrl.
func (q *Queue) URL() string { return q.server.URL + "/" + account + "/" + q.name }

// ARN returns the queue's Amazon resource name.
func (q *Queue) ARN() string { return "arn:aws:sqs:" + q.server.region + ":" + account + ":" + q.name }

// Send puts a message into the queue, ignoring any delay that the queue has, and returns its ID. It checks nothing:
// it also delivers a body that SQS would refuse.
func (q *Queue) Send(body string) string { return q.SendAt(body, time.Now()) }

// SendAt puts a message into the queue as if it had been sent at another time: an hour ago, for one that waited for
// its consumer. One that is older than the retention period is never delivered.
func (q *Queue) SendAt(body string, sent time.Time) string {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	return q.add(&message{Message: Message{Body: body, Sent: sent}}, 0).ID
}

// Messages returns a snapshot of all messages that the queue ever had, including those that are gone, in the order
// of arrival. Those that were given up are in the snapshot of the dead-letter queue instead.
func (q *Queue) Messages() []Message {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	q.sweep(time.Now())
	all := make([]*message, 0, len(q.messages))
	for _, m := range q.messages {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
	snapshot := make([]Message, 0, len(all))
	for _, m := range all {
		snapshot = append(snapshot, m.Message)
	}
	return snapshot
}

// Deleted reports whether a consumer deleted the message of that ID, or the queue was purged of it. It is false for
// one that expired or is unknown.
func (q *Queue) Deleted(id string) bool {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	m := q.messages[id]
	return m != nil && m.State == Deleted
}

// Duplicate delivers the next n messages twice: in the same answer if it has room, otherwise in the next one, even
// if the first copy is deleted by then. Each copy has a receipt handle of its own, and either one deletes the
// message.
func (q *Queue) Duplicate(n int) {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	q.duplicates += n
}

// WaitEmpty blocks until every message is gone: deleted, expired or moved to a dead-letter queue. Expiry alone
// wakes nobody: it is noticed when somebody next looks into the queue.
func (q *Queue) WaitEmpty(ctx context.Context) error {
	for {
		q.server.mu.Lock()
		q.sweep(time.Now())
		living, emptied := q.living, q.emptied
		q.server.mu.Unlock()
		if living == 0 {
			return nil
		}
		select {
		case <-emptied:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// add takes a message in: a new one, or one from a queue that gave it up.
func (q *Queue) add(m *message, delay time.Duration) *message {
	if m.ID == "" {
		m.ID = newUUID()
		m.md5 = md5Hex(m.Body)
	}
	q.arrivals++
	m.seq = q.arrivals
	m.hidden = -1
	q.messages[m.ID] = m
	q.living++
	if delay > 0 {
		q.hide(m, Delayed, time.Now().Add(delay))
	} else {
		q.show(m)
	}
	return m
}

// remove ends a message's life in this queue.
func (q *Queue) remove(m *message, state State, now time.Time) {
	q.unlink(m)
	m.State, m.DeletedAt = state, now
	q.leave()
}

// leave counts a message out and notifies those who wait for the last one.
func (q *Queue) leave() {
	q.living--
	if q.living == 0 {
		close(q.emptied)
		q.emptied = make(chan struct{})
	}
}

// drop ends long polls and timers; the queue no longer exists.
func (q *Queue) drop() {
	q.dropped = true
	q.wakeUp.Stop()
	q.wake(q.waiters.Len())
}

func md5Hex(text string) string {
	sum := md5.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}
