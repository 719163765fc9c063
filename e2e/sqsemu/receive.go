package sqsemu

import (
	"context"
	"slices"
	"strconv"
	"time"
)

type receiveInput struct {
	QueueUrl                    string
	MessageSystemAttributeNames []string
	MessageAttributeNames       []string
	MaxNumberOfMessages         *int
	VisibilityTimeout           *int
	WaitTimeSeconds             *int
}

type receivedMessage struct {
	MessageId              string
	ReceiptHandle          string
	MD5OfBody              string
	Body                   string
	Attributes             map[string]string           `json:",omitempty"`
	MD5OfMessageAttributes string                      `json:",omitempty"`
	MessageAttributes      map[string]messageAttribute `json:",omitempty"`
}

type receiveOutput struct {
	Messages []receivedMessage `json:",omitempty"`
}

// receive is a ReceiveMessage with its defaults filled in.
type receive struct {
	*receiveInput
	max        int
	visibility time.Duration
	until      time.Time
}

// handleReceiveMessage answers as soon as there is a message, with as many as are there and were requested; after
// the wait it answers without any.
func (s *Server) handleReceiveMessage(ctx context.Context, in *receiveInput) (any, *apiError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.find(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	r, err := q.prepare(in)
	if err != nil {
		return nil, err
	}
	for {
		now := time.Now()
		if messages := q.take(r, now); len(messages) > 0 || !now.Before(r.until) {
			return receiveOutput{messages}, nil
		}
		if !q.wait(ctx, r.until) {
			return receiveOutput{}, nil // nobody is there to read it
		}
		if q.dropped {
			return nil, errQueueDoesNotExist()
		}
	}
}

func (q *Queue) prepare(in *receiveInput) (*receive, *apiError) {
	maximum, err := between("MaxNumberOfMessages", in.MaxNumberOfMessages, 1, 1, maxBatch)
	if err != nil {
		return nil, err
	}
	visibility, err := between("VisibilityTimeout", in.VisibilityTimeout, q.attributes.number[visibilityTimeout], 0, maxVisibility)
	if err != nil {
		return nil, err
	}
	wait, err := between("WaitTimeSeconds", in.WaitTimeSeconds, q.attributes.number[receiveWait], 0, maxWait)
	if err != nil {
		return nil, err
	}
	return &receive{
		receiveInput: in, max: maximum, visibility: time.Duration(visibility) * time.Second,
		until: time.Now().Add(time.Duration(wait) * time.Second),
	}, nil
}

// between returns the value given, or the initial one, if it is within the limits.
func between(parameter string, given *int, initial, least, most int) (int, *apiError) {
	value := initial
	if given != nil {
		value = *given
	}
	if value < least || value > most {
		return 0, errParameter("Value %d for parameter %s is invalid. Reason: Must be between %d and %d, if provided.", value, parameter, least, most)
	}
	return value, nil
}

// wait releases the lock until a message may have come, or time is up. It is false if the client left.
func (q *Queue) wait(ctx context.Context, until time.Time) bool {
	woken := make(chan struct{})
	place := q.waiters.PushBack(woken)
	q.server.mu.Unlock()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-woken:
	case <-timer.C:
	case <-ctx.Done():
	}
	q.server.mu.Lock()

	select {
	case <-woken:
		if ctx.Err() != nil {
			q.wake(1) // the message that this one was woken for is still there
		}
	default:
		q.waiters.Remove(place)
	}
	return ctx.Err() == nil
}

// take delivers what is there: second copies first, then the visible messages in their order.
func (q *Queue) take(r *receive, now time.Time) []receivedMessage {
	q.advance(now)
	var messages []receivedMessage
	for len(q.copies) > 0 && len(messages) < r.max {
		messages = append(messages, q.deliver(q.copies[0], r, now, true))
		q.copies = q.copies[1:]
	}
	// With a timeout of 0 a message is visible again while this still runs; it must not be delivered twice.
	for n := q.visible.Len(); n > 0 && len(messages) < r.max; n-- {
		m := q.visible.Front().Value.(*message)
		if q.outlived(m, now) {
			q.remove(m, Expired, now)
			continue
		}
		if q.giveUp(m) {
			continue
		}
		messages = append(messages, q.deliver(m, r, now, false))
		if q.duplicates == 0 {
			continue
		}
		q.duplicates--
		if len(messages) < r.max {
			messages = append(messages, q.deliver(m, r, now, true))
		} else {
			q.copies = append(q.copies, m)
			q.wake(1)
		}
	}
	return messages
}

// giveUp moves a message that was received too often to the dead-letter queue. SQS does so when it would otherwise
// deliver the message again. Its age keeps counting, so the other queue should retain longer.
func (q *Queue) giveUp(m *message) bool {
	policy := q.attributes.redrive
	if policy == nil || m.ReceiveCount < policy.maxReceives {
		return false
	}
	other := q.server.queues[policy.deadLetters]
	if other == nil || other == q {
		return false
	}
	q.unlink(m)
	delete(q.messages, m.ID)
	q.leave()
	m.deadLetters = q.ARN()
	m.handles = nil
	other.add(m, 0)
	return true
}

// deliver hands a message out under a new receipt handle. The handles of earlier receives become void, but the
// first copy's stays good alongside the second's.
func (q *Queue) deliver(m *message, r *receive, now time.Time, second bool) receivedMessage {
	handle := q.newHandle(m)
	if !second {
		m.handles = m.handles[:0]
	}
	m.handles = append(m.handles, handle)
	m.ReceiveCount++
	m.taken = now
	if m.firstTaken.IsZero() {
		m.firstTaken = now
	}
	if !m.gone() {
		q.hide(m, InFlight, now.Add(r.visibility))
	}
	attributes := selectAttributes(m.attributes, r.MessageAttributeNames)
	return receivedMessage{
		MessageId: m.ID, ReceiptHandle: handle, MD5OfBody: m.md5, Body: m.Body,
		Attributes:             m.systemAttributes(r.MessageSystemAttributeNames),
		MD5OfMessageAttributes: md5OfAttributes(attributes), MessageAttributes: attributes,
	}
}

func (m *message) systemAttributes(names []string) map[string]string {
	all := map[string]string{
		"SenderId":                         account,
		"SentTimestamp":                    strconv.FormatInt(m.Sent.UnixMilli(), 10),
		"ApproximateReceiveCount":          strconv.Itoa(m.ReceiveCount),
		"ApproximateFirstReceiveTimestamp": strconv.FormatInt(m.firstTaken.UnixMilli(), 10),
	}
	if m.trace != "" {
		all["AWSTraceHeader"] = m.trace
	}
	if m.deadLetters != "" {
		all["DeadLetterQueueSourceArn"] = m.deadLetters
	}
	if slices.Contains(names, "All") {
		return all
	}
	wanted := map[string]string{}
	for _, name := range names {
		if value, ok := all[name]; ok {
			wanted[name] = value
		}
	}
	return wanted
}
