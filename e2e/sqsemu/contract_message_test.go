package sqsemu_test

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"
)

func checkRoundTrip(t *testing.T, s *service) {
	queue := s.newQueue(t)
	// The SDK checks the digest of the body on the way in and out.
	for _, body := range []string{`{"detail-type":"EC2 Spot Instance Interruption Warning"}`, "ünïcode ☃", "<&> \"\\ \t\r\n", " "} {
		id := s.send(t, queue, body)[0]
		m := s.receiveOne(t, queue)
		if *m.Body != body || *m.MessageId != id || m.MD5OfBody == nil {
			t.Errorf("received %q (%s), want %q (%s)", *m.Body, *m.MessageId, body, id)
		}
	}
	_, err := s.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: queue, MessageBody: text("")})
	wantCode(t, "send an empty body", err, "MissingParameter")
}

func checkAstral(t *testing.T, s *service) {
	queue := s.newQueue(t)
	s.send(t, queue, "🜁")
	if m := s.receiveOne(t, queue); *m.Body != "🜁" {
		t.Errorf("received %q", *m.Body)
	}
}

func checkSystemAttributes(t *testing.T, s *service) {
	queue := s.newQueue(t)
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
	for _, name := range []string{"SentTimestamp", "ApproximateFirstReceiveTimestamp"} {
		ms, err := strconv.ParseInt(all[name], 10, 64)
		if at := time.UnixMilli(ms); err != nil || at.Before(before) || at.After(time.Now().Add(time.Second)) {
			t.Errorf("%s = %q, want milliseconds of now", name, all[name])
		}
	}
	if none := receive(sqs.ReceiveMessageInput{}); len(none) != 0 {
		t.Errorf("attributes that nobody asked for: %v", none)
	}
}

func checkMessageAttributes(t *testing.T, s *service) {
	queue := s.newQueue(t)
	sent, err := s.SendMessage(t.Context(), &sqs.SendMessageInput{
		QueueUrl: queue, MessageBody: text("x"),
		MessageAttributes: map[string]types.MessageAttributeValue{
			"Zone": {DataType: text("String"), StringValue: text("us-east-1a")},
			"N":    {DataType: text("Number"), StringValue: text("7")},
			"Raw":  {DataType: text("Binary"), BinaryValue: []byte{0, 1, 2}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	// By the algorithm in the developer guide.
	if got, want := *sent.MD5OfMessageAttributes, "6aff37d0085722bbcad15884d2a08a2d"; got != want {
		t.Errorf("digest of the attributes = %s, want %s", got, want)
	}
	out, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: queue, MessageAttributeNames: []string{"Zone", "Raw"}})
	if err != nil || len(out.Messages) != 1 {
		t.Fatalf("receive: %v, %v", out, err)
	}
	got := out.Messages[0].MessageAttributes
	if diff := cmp.Diff([]string{"Raw", "Zone"}, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("attributes (-want +got):\n%s", diff)
	}
	if *got["Zone"].StringValue != "us-east-1a" || !slices.Equal(got["Raw"].BinaryValue, []byte{0, 1, 2}) {
		t.Errorf("values = %v", got)
	}
}

func checkMessageAttributePrefix(t *testing.T, s *service) {
	queue := s.newQueue(t)
	value := types.MessageAttributeValue{DataType: text("String"), StringValue: text("x")}
	_, err := s.SendMessage(t.Context(), &sqs.SendMessageInput{
		QueueUrl: queue, MessageBody: text("x"),
		MessageAttributes: map[string]types.MessageAttributeValue{"aws.id": value, "aws.zone": value, "other": value},
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: queue, MessageAttributeNames: []string{"aws.*"}})
	if err != nil || len(out.Messages) != 1 {
		t.Fatalf("receive: %v, %v", out, err)
	}
	got := slices.Sorted(maps.Keys(out.Messages[0].MessageAttributes))
	if diff := cmp.Diff([]string{"aws.id", "aws.zone"}, got); diff != "" {
		t.Errorf("attributes (-want +got):\n%s", diff)
	}
}

func checkReceiveLimits(t *testing.T, s *service) {
	queue := s.newQueue(t)
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
	queue := s.newQueue(t)
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
	queue := s.newQueue(t)
	begun := time.Now()
	if messages := s.receive(t, queue, 1); len(messages) != 0 {
		t.Errorf("received %v from an empty queue", messages)
	}
	if took := time.Since(begun); took < 900*time.Millisecond || took > 10*time.Second {
		t.Errorf("a poll of 1 s took %v", took)
	}
}

func checkBadHandle(t *testing.T, s *service) {
	queue := s.newQueue(t)
	bad := text("not a handle")
	_, err := s.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: queue, ReceiptHandle: bad})
	wantError[*types.ReceiptHandleIsInvalid](t, "delete", err)
	wantError[*types.ReceiptHandleIsInvalid](t, "change", s.changeVisibility(t, queue, bad, 1))
}

func checkDelay(t *testing.T, s *service) {
	var queue *string
	inTime(t, func() bool {
		queue = s.newQueue(t)
		began := time.Now()
		_, err := s.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: queue, MessageBody: text("later"), DelaySeconds: 1})
		if err != nil {
			t.Fatal(err)
		}
		return s.wantHidden(t, queue, began, time.Second)
	})
	s.receiveOne(t, queue)
}

func checkCharacters(t *testing.T, s *service) {
	queue := s.newQueue(t)
	_, err := s.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: queue, MessageBody: text("bell \a")})
	wantError[*types.InvalidMessageContents](t, "control character", err)
}

func checkMessageSize(t *testing.T, s *service) {
	queue := s.newQueue(t)
	body := strings.Repeat("x", 1<<20)
	s.send(t, queue, body)
	if m := s.receiveOne(t, queue); *m.Body != body {
		t.Errorf("received %d bytes, want %d", len(*m.Body), len(body))
	}
	_, err := s.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: queue, MessageBody: text(body + "x")})
	wantCode(t, "one byte more", err, "InvalidParameterValue")
}
