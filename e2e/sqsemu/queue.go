package sqsemu

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// State is where a message is in its life.
type State string

const (
	// Visible messages are delivered to the next ReceiveMessage.
	Visible State = "visible"
	// InFlight messages were received and are neither deleted nor visible again.
	InFlight State = "in-flight"
	// Deleted messages were deleted by a consumer.
	Deleted State = "deleted"
)

// Message is a snapshot of a message.
type Message struct {
	ID   string
	Body string
	Sent time.Time
	// ReceiveCount is how often it was delivered, duplicates included.
	ReceiveCount int
	State        State
	// DeletedAt is when it was first deleted; zero for a live message.
	DeletedAt time.Time
}

// message is a message of a queue. A message that is InFlight is in fact visible once visibleAt has passed, see state.
type message struct {
	Message
	seq       int      // order of arrival
	handles   []string // of the latest receive, and of its duplicate if there was one
	visibleAt time.Time
}

// Queue is a standard queue. Its methods take effect at once, without a request.
type Queue struct {
	server  *Server
	name    string
	options QueueOptions

	messages map[string]*message // including those that are deleted
	live     []*message          // those that are not, byVisibility
	arrivals int

	duplicates int        // how many messages are still to be delivered twice
	copies     []*message // second deliveries that are due

	changed chan struct{} // closed at the next change, for those who wait for one
	polls   int           // that wait
}

// URL returns the queue's URL, which the API takes as QueueUrl.
func (q *Queue) URL() string { return q.server.URL + "/" + account + "/" + q.name }

// ARN returns the queue's Amazon resource name.
func (q *Queue) ARN() string { return "arn:aws:sqs:" + region + ":" + account + ":" + q.name }

// Send puts a message into the queue and returns its ID. It checks nothing: it also delivers a body that SQS would
// refuse.
func (q *Queue) Send(body string) string {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	now := time.Now()
	m := &message{Message: Message{ID: string(uuid.NewUUID()), Body: body, Sent: now}}
	q.add(m, now)
	return m.ID
}

// Messages returns a snapshot of all messages that the queue ever had, including those that are deleted, in the
// order of arrival. Those that were given up are in the snapshot of the dead-letter queue instead.
func (q *Queue) Messages() []Message {
	q.server.mu.Lock()
	defer q.server.mu.Unlock()
	all := make([]*message, 0, len(q.messages))
	for _, m := range q.messages {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *message) int { return cmp.Compare(a.seq, b.seq) })
	now := time.Now()
	snapshot := make([]Message, 0, len(all))
	for _, m := range all {
		m.State = m.state(now)
		snapshot = append(snapshot, m.Message)
	}
	return snapshot
}

// Deleted reports whether a consumer deleted the message of that ID. It is false for one that is unknown.
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

// WaitEmpty blocks until every message is deleted or moved to a dead-letter queue.
func (q *Queue) WaitEmpty(ctx context.Context) error {
	for {
		q.server.mu.Lock()
		live, changed := len(q.live), q.changed
		q.server.mu.Unlock()
		if live == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// add takes a message in: a new one, or one from a queue that gave it up.
func (q *Queue) add(m *message, now time.Time) {
	q.arrivals++
	m.seq, m.State, m.visibleAt = q.arrivals, Visible, now
	q.messages[m.ID] = m
	q.insert(m)
	q.change()
}

// hide keeps a live message from being delivered until a time; now or earlier makes it visible.
func (q *Queue) hide(m *message, until time.Time) {
	q.remove(m)
	m.State, m.visibleAt = InFlight, until
	q.insert(m)
	q.change()
}

func (q *Queue) delete(m *message) {
	q.remove(m)
	m.State, m.DeletedAt = Deleted, time.Now()
	q.change()
}

// change wakes those who wait for a change.
func (q *Queue) change() {
	close(q.changed)
	q.changed = make(chan struct{})
}

func (m *message) state(now time.Time) State {
	if m.State == InFlight && !m.visibleAt.After(now) {
		return Visible
	}
	return m.State
}

// byVisibility has first the message that becomes visible first, or has been for longest.
func byVisibility(a, b *message) int {
	return cmp.Or(a.visibleAt.Compare(b.visibleAt), cmp.Compare(a.seq, b.seq))
}

func (q *Queue) insert(m *message) {
	at, _ := slices.BinarySearchFunc(q.live, m, byVisibility)
	q.live = slices.Insert(q.live, at, m)
}

func (q *Queue) remove(m *message) {
	at, _ := slices.BinarySearchFunc(q.live, m, byVisibility)
	q.live = slices.Delete(q.live, at, at+1)
}
