package sqsemu

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"slices"
	"strconv"
	"time"
)

const (
	// maxVisibility is the longest time, in seconds, for which a request can hide a message, and maxWait for which
	// a receive can wait.
	maxVisibility = 12 * 60 * 60
	maxWait       = 20
)

type receiveInput struct {
	QueueUrl                    string
	MessageSystemAttributeNames []string
	MaxNumberOfMessages         *int
	VisibilityTimeout           *int
	WaitTimeSeconds             *int
}

type receivedMessage struct {
	MessageId     string
	ReceiptHandle string
	MD5OfBody     string
	Body          string
	Attributes    map[string]string `json:",omitempty"`
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
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) {
		r, err := q.prepare(in)
		if err != nil {
			return nil, err
		}
		for {
			now := time.Now()
			if messages := q.take(r, now); len(messages) > 0 || !now.Before(r.until) {
				return receiveOutput{messages}, nil
			}
			q.wait(ctx, r.until)
			if ctx.Err() != nil {
				return receiveOutput{}, nil // the client has left
			}
		}
	})
}

func (q *Queue) prepare(in *receiveInput) (*receive, *apiError) {
	maximum, err := between("MaxNumberOfMessages", in.MaxNumberOfMessages, 1, 1, maxBatch)
	if err != nil {
		return nil, err
	}
	visibility, err := between("VisibilityTimeout", in.VisibilityTimeout, int(q.options.Visibility.Seconds()), 0, maxVisibility)
	if err != nil {
		return nil, err
	}
	wait, err := between("WaitTimeSeconds", in.WaitTimeSeconds, 0, 0, maxWait)
	if err != nil {
		return nil, err
	}
	return &receive{
		receiveInput: in,
		max:          maximum,
		visibility:   time.Duration(visibility) * time.Second,
		until:        time.Now().Add(time.Duration(wait) * time.Second),
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

// wait releases the lock until a message may have come, the time has come, or the client has left.
func (q *Queue) wait(ctx context.Context, until time.Time) {
	if len(q.live) > 0 && q.live[0].visibleAt.Before(until) {
		until = q.live[0].visibleAt
	}
	changed := q.changed
	q.polls++
	q.server.mu.Unlock()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	}
	q.server.mu.Lock()
	q.polls--
}

// take delivers what is there: second copies first, then the visible messages in their order.
func (q *Queue) take(r *receive, now time.Time) []receivedMessage {
	var messages []receivedMessage
	for len(q.copies) > 0 && len(messages) < r.max {
		messages = append(messages, q.deliver(q.copies[0], r, true))
		q.copies = q.copies[1:]
	}
	// With a timeout of 0 a message is visible again at once; it must not be delivered twice.
	var taken []*message
	for len(q.live) > 0 && !q.live[0].visibleAt.After(now) && len(messages) < r.max {
		m := q.live[0]
		q.remove(m)
		if q.giveUp(m, now) {
			continue
		}
		taken = append(taken, m)
		messages = append(messages, q.deliver(m, r, false))
		if q.duplicates == 0 {
			continue
		}
		q.duplicates--
		if len(messages) < r.max {
			messages = append(messages, q.deliver(m, r, true))
		} else {
			q.copies = append(q.copies, m)
		}
	}
	for _, m := range taken {
		m.State, m.visibleAt = InFlight, now.Add(r.visibility)
		q.insert(m)
	}
	if len(q.copies) > 0 {
		q.change() // for another poll
	}
	return messages
}

// giveUp moves a message that was received too often to the dead-letter queue. SQS does so when it would otherwise
// deliver the message again.
func (q *Queue) giveUp(m *message, now time.Time) bool {
	if q.options.DeadLetters == nil || m.ReceiveCount < q.options.MaxReceives {
		return false
	}
	delete(q.messages, m.ID)
	q.change()
	m.handles = nil
	q.options.DeadLetters.add(m, now)
	return true
}

// deliver hands a message out under a new receipt handle. The handles of earlier receives become void, but the
// first copy's stays good alongside the second's.
func (q *Queue) deliver(m *message, r *receive, second bool) receivedMessage {
	handle := q.newHandle(m)
	if !second {
		m.handles = m.handles[:0]
	}
	m.handles = append(m.handles, handle)
	m.ReceiveCount++
	digest := md5.Sum([]byte(m.Body))
	return receivedMessage{
		MessageId:     m.ID,
		ReceiptHandle: handle,
		MD5OfBody:     hex.EncodeToString(digest[:]),
		Body:          m.Body,
		Attributes:    m.systemAttributes(r.MessageSystemAttributeNames),
	}
}

func (m *message) systemAttributes(names []string) map[string]string {
	wanted := map[string]string{}
	for name, value := range map[string]string{
		"SentTimestamp":           strconv.FormatInt(m.Sent.UnixMilli(), 10),
		"ApproximateReceiveCount": strconv.Itoa(m.ReceiveCount),
	} {
		if slices.Contains(names, name) || slices.Contains(names, "All") {
			wanted[name] = value
		}
	}
	return wanted
}
