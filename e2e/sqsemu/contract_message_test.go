package sqsemu_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

func checkRoundTrip(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	// The SDK checks the digest of the body on the way in and out.
	for _, body := range []string{`{"detail-type":"EC2 Spot Instance Interruption Warning"}`, "ünïcode ☃", "<&> \"\\ \t\r\n", " "} {
		id := s.send(t, queue, body)[0]
		m := s.receiveOne(t, queue)
		if *m.Body != body || *m.MessageId != id || m.MD5OfBody == nil {
			t.Errorf("received %q (%s), want %q (%s)", *m.Body, *m.MessageId, body, id)
		}
	}
}

func checkAstral(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	s.send(t, queue, "🜁")
	if m := s.receiveOne(t, queue); *m.Body != "🜁" {
		t.Errorf("received %q", *m.Body)
	}
}

func checkSystemAttributes(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	before := time.Now().Add(-time.Second)
	s.send(t, queue, "x", "y", "z")
	receive := func(in sqs.ReceiveMessageInput) map[string]string {
		t.Helper()
		in.QueueUrl = queue
		out, err := s.ReceiveMessage(t.Context(), &in)
		if err != nil || len(out.Messages) != 1 {
			t.Fatalf("receive: %v, %v", out, err)
		}
		return out.Messages[0].Attributes
	}
	all := receive(sqs.ReceiveMessageInput{MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"}})
	if all["ApproximateReceiveCount"] != "1" {
		t.Errorf("receive count = %q, want 1", all["ApproximateReceiveCount"])
	}
	ms, err := strconv.ParseInt(all["SentTimestamp"], 10, 64)
	if at := time.UnixMilli(ms); err != nil || at.Before(before) || at.After(time.Now().Add(time.Second)) {
		t.Errorf("SentTimestamp = %q, want milliseconds of now", all["SentTimestamp"])
	}
	if none := receive(sqs.ReceiveMessageInput{}); len(none) != 0 {
		t.Errorf("attributes that nobody asked for: %v", none)
	}
}

func checkReceiveLimits(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	for range 12 {
		s.send(t, queue, "x")
	}
	if n := len(s.receive(t, queue, 0)); n < 1 || n > 10 {
		t.Errorf("received %d messages, want up to 10", n)
	}
	for name, in := range map[string]sqs.ReceiveMessageInput{
		"eleven messages":  {MaxNumberOfMessages: 11},
		"wait of 21 s":     {WaitTimeSeconds: 21},
		"timeout of 12 h+": {VisibilityTimeout: 43201},
	} {
		in.QueueUrl = queue
		_, err := s.ReceiveMessage(t.Context(), &in)
		wantCode(t, name, err, "InvalidParameterValue")
	}
}

func checkLongPollWakes(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	type result struct {
		messages []types.Message
		err      error
		at       time.Time
	}
	received := make(chan result, 1)
	go func() {
		out, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: queue, WaitTimeSeconds: 20})
		if err != nil {
			received <- result{err: err}
			return
		}
		received <- result{messages: out.Messages, at: time.Now()}
	}()
	// Nobody outside can see whether the poll is waiting; if the message is sent too early, that is only an easier
	// case.
	time.Sleep(300 * time.Millisecond)
	s.send(t, queue, "wake up")
	sent := time.Now()
	r := <-received
	if r.err != nil || len(r.messages) != 1 {
		t.Fatalf("long poll: %v, %v", r.messages, r.err)
	}
	// Far less than the poll, and far more than a slow machine needs.
	if late := r.at.Sub(sent); late > 10*time.Second {
		t.Errorf("the message came %v after it was sent", late)
	}
}

func checkLongPollEnds(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	begun := time.Now()
	if messages := s.receive(t, queue, 1); len(messages) != 0 {
		t.Errorf("received %v from an empty queue", messages)
	}
	if took := time.Since(begun); took < 900*time.Millisecond || took > 10*time.Second {
		t.Errorf("a poll of 1 s took %v", took)
	}
}

func checkBadHandle(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	bad := text("not a handle")
	_, err := s.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: queue, ReceiptHandle: bad})
	wantError[*types.ReceiptHandleIsInvalid](t, "delete", err)
	wantCode(t, "change", s.changeVisibility(t, queue, bad, 1), "ReceiptHandleIsInvalid")
}
