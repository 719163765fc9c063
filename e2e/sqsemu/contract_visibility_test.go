package sqsemu_test

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

func checkRedelivery(t *testing.T, s *service) {
	var queue *string
	var first types.Message
	inTime(t, func() bool {
		queue = s.newQueue(t, 1)
		s.send(t, queue, "x")
		began := time.Now()
		first = s.receiveOne(t, queue)
		return s.wantHidden(t, queue, began, time.Second)
	})
	second := s.receiveOne(t, queue)
	if *second.MessageId != *first.MessageId || *second.ReceiptHandle == *first.ReceiptHandle {
		t.Errorf("redelivered %s with handle %q; before: %s with %q", *second.MessageId, *second.ReceiptHandle, *first.MessageId, *first.ReceiptHandle)
	}
	if n := second.Attributes["ApproximateReceiveCount"]; n != "2" {
		t.Errorf("receive count = %s, want 2", n)
	}
	if m := receiveFor(t, s, queue, 30); m.Attributes["ApproximateReceiveCount"] != "3" {
		t.Errorf("receive count = %s, want 3", m.Attributes["ApproximateReceiveCount"])
	}
	time.Sleep(1500 * time.Millisecond)
	s.wantNone(t, queue) // the timeout of the receive overrides that of the queue
}

// receiveFor receives one message with a visibility timeout of its own.
func receiveFor(t *testing.T, s *service, queue *string, timeout int32) types.Message {
	t.Helper()
	out, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
		QueueUrl: queue, WaitTimeSeconds: 5, VisibilityTimeout: timeout,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
	})
	if err != nil || len(out.Messages) != 1 {
		t.Fatalf("receive: %v, %v", out, err)
	}
	return out.Messages[0]
}

func (s *service) delete(t *testing.T, queue, handle *string) {
	t.Helper()
	if _, err := s.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: queue, ReceiptHandle: handle}); err != nil {
		t.Fatalf("delete message: %v", err)
	}
}

func checkOldHandle(t *testing.T, s *service) {
	queue := s.newQueue(t, 1)
	s.send(t, queue, "x")
	first := s.receiveOne(t, queue)
	second := s.receiveOne(t, queue)
	s.delete(t, queue, first.ReceiptHandle) // "the request will succeed, but the message might not be deleted"
	s.delete(t, queue, second.ReceiptHandle)
	if messages := s.receive(t, queue, 2); len(messages) != 0 {
		t.Errorf("received %v after it was deleted by its latest handle", messages)
	}
}

func checkDelete(t *testing.T, s *service) {
	queue := s.newQueue(t, 1)
	s.send(t, queue, "x")
	m := s.receiveOne(t, queue)
	s.delete(t, queue, m.ReceiptHandle)
	s.delete(t, queue, m.ReceiptHandle)
	if messages := s.receive(t, queue, 2); len(messages) != 0 {
		t.Errorf("received %v after it was deleted", messages)
	}
	if visible, hidden := s.count(t, queue); visible != "0" || hidden != "0" {
		t.Errorf("visible, in flight = %s, %s, want 0, 0", visible, hidden)
	}
}

func checkLateDelete(t *testing.T, s *service) {
	queue := s.newQueue(t, 1)
	s.send(t, queue, "x")
	m := s.receiveOne(t, queue)
	time.Sleep(1200 * time.Millisecond)
	s.delete(t, queue, m.ReceiptHandle)
	s.wantNone(t, queue)
}

// changeVisibility returns the error of the only entry of a batch.
func (s *service) changeVisibility(t *testing.T, queue, handle *string, timeout int32) error {
	t.Helper()
	out, err := s.ChangeMessageVisibilityBatch(t.Context(), &sqs.ChangeMessageVisibilityBatchInput{
		QueueUrl: queue, Entries: []types.ChangeMessageVisibilityBatchRequestEntry{{
			Id: text("only"), ReceiptHandle: handle, VisibilityTimeout: timeout,
		}},
	})
	if err != nil || len(out.Failed) == 0 {
		return err
	}
	return &smithy.GenericAPIError{Code: *out.Failed[0].Code, Message: aws.ToString(out.Failed[0].Message)}
}

func checkChangeVisibility(t *testing.T, s *service) {
	var queue *string
	var m types.Message
	inTime(t, func() bool {
		queue = s.newQueue(t, 20)
		s.send(t, queue, "x")
		m = s.receiveOne(t, queue)
		if err := s.changeVisibility(t, queue, m.ReceiptHandle, 0); err != nil {
			t.Fatalf("cut short: %v", err)
		}
		// It comes long before the 20 s are over. This time it would be back after 2 s, before the poll below ends.
		began := time.Now()
		m = receiveFor(t, s, queue, 2)
		err := s.changeVisibility(t, queue, m.ReceiptHandle, 60)
		if time.Since(began) >= 2*time.Second {
			return false
		}
		if err != nil {
			t.Fatalf("prolong: %v", err)
		}
		return true
	})
	if messages := s.receive(t, queue, 3); len(messages) != 0 {
		t.Errorf("received %v though its time was prolonged", messages)
	}
	wantCode(t, "more than 12 h", s.changeVisibility(t, queue, m.ReceiptHandle, 43201), "InvalidParameterValue")
}

func checkNotInFlight(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	s.send(t, queue, "x")
	m := s.receiveOne(t, queue)
	if err := s.changeVisibility(t, queue, m.ReceiptHandle, 0); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "change of a visible message", s.changeVisibility(t, queue, m.ReceiptHandle, 10), "MessageNotInflight")
}
