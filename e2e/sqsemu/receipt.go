package sqsemu

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"slices"
	"strings"
	"time"
)

// newHandle returns a receipt handle. Like a real one it is opaque to clients. It names to the service which message
// of which queue it stands for, even when the message is gone.
func (q *Queue) newHandle(m *message) string {
	return base64.StdEncoding.EncodeToString([]byte(q.name + "/" + m.ID + "/" + rand.Text()))
}

// open returns the message that a receipt handle stands for, and whether the handle is from its latest receive. The
// message is nil if the queue no longer knows it.
func (q *Queue) open(handle string) (m *message, latest bool, err *apiError) {
	if handle == "" {
		return nil, false, errMissing("ReceiptHandle")
	}
	text, decodeErr := base64.StdEncoding.DecodeString(handle)
	parts := strings.Split(string(text), "/")
	if decodeErr != nil || len(parts) != 3 || parts[0] != q.name {
		return nil, false, errReceiptHandle(handle)
	}
	m = q.messages[parts[1]]
	return m, m != nil && slices.Contains(m.handles, handle), nil
}

type receiptInput struct {
	Id                string // in a batch
	QueueUrl          string // of a single one
	ReceiptHandle     string
	VisibilityTimeout *int // of a change
}

func (in *receiptInput) id() string { return in.Id }

type receiptBatchInput struct {
	QueueUrl string
	Entries  []receiptInput
}

func (s *Server) handleDeleteMessage(_ context.Context, in *receiptInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) { return nil, q.deleteMessage(in) })
}

func (s *Server) handleDeleteMessageBatch(_ context.Context, in *receiptBatchInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) {
		return batch(in.Entries, (*receiptInput).id, func(e *receiptInput) (idOutput, *apiError) {
			return idOutput{e.Id}, q.deleteMessage(e)
		})
	})
}

// deleteMessage deletes the message whether or not it is still in flight, as long as nobody has received it since.
// With an older handle the call succeeds and "the message might not be deleted" (API reference). Here it is not: a
// consumer that counted on it would otherwise lose nothing with us and messages with AWS. Deleting twice succeeds.
func (q *Queue) deleteMessage(in *receiptInput) *apiError {
	m, latest, err := q.open(in.ReceiptHandle)
	if err != nil {
		return err
	}
	if latest && m.State != Deleted {
		q.delete(m)
	}
	return nil
}

func (s *Server) handleChangeVisibilityBatch(_ context.Context, in *receiptBatchInput) (any, *apiError) {
	return s.withQueue(in.QueueUrl, func(q *Queue) (any, *apiError) {
		return batch(in.Entries, (*receiptInput).id, func(e *receiptInput) (idOutput, *apiError) {
			return idOutput{e.Id}, q.changeVisibility(e)
		})
	})
}

// changeVisibility makes the timeout begin again; 0 makes the message visible at once.
func (q *Queue) changeVisibility(in *receiptInput) *apiError {
	if in.VisibilityTimeout == nil {
		return errMissing("VisibilityTimeout")
	}
	seconds, err := between("VisibilityTimeout", in.VisibilityTimeout, 0, 0, maxVisibility)
	if err != nil {
		return err
	}
	m, latest, err := q.open(in.ReceiptHandle)
	if err != nil {
		return err
	}
	if !latest || m.State == Deleted {
		return errParameter("Value %s for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for visibility timeout change.", in.ReceiptHandle)
	}
	now := time.Now()
	if m.state(now) != InFlight {
		return modeled("MessageNotInflight", "The message referred to isn't in flight.")
	}
	q.hide(m, now.Add(time.Duration(seconds)*time.Second))
	return nil
}
