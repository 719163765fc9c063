package sqsemu_test

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"spot-handler/e2e/sqsemu"
)

// start returns an emulator with a queue, and the service that the contract's methods use.
func start(t testing.TB) (*sqsemu.Server, *sqsemu.Queue, *service) {
	t.Helper()
	server := sqsemu.Start()
	t.Cleanup(server.Close)
	return server, server.Queue("interruptions"), emulated(server)
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	server, queue, s := start(t)
	url := text(queue.URL())
	first := queue.Send("first")
	m := s.receiveOne(t, url)
	s.delete(t, url, m.ReceiptHandle)
	second := queue.Send("second")
	s.receiveOne(t, url)
	third := queue.Send("third")

	want := []sqsemu.Message{
		{ID: first, Body: "first", ReceiveCount: 1, State: sqsemu.Deleted},
		{ID: second, Body: "second", ReceiveCount: 1, State: sqsemu.InFlight},
		{ID: third, Body: "third", State: sqsemu.Visible},
	}
	got := queue.Messages()
	ignore := cmpopts.IgnoreFields(sqsemu.Message{}, "DeletedAt", "Sent")
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if got[0].Sent.IsZero() || got[0].DeletedAt.Before(got[0].Sent) || !got[1].DeletedAt.IsZero() {
		t.Errorf("times of the messages: %+v", got)
	}
	if !queue.Deleted(first) || queue.Deleted(second) || queue.Deleted("unknown") {
		t.Error("Deleted is not true of the first alone")
	}
	if r, d := server.Requests("ReceiveMessage"), server.Requests("DeleteMessage"); r != 2 || d != 1 {
		t.Errorf("counted %d receives and %d deletes, want 2 and 1", r, d)
	}
}

func TestOldHandleDeletesNothing(t *testing.T) {
	t.Parallel()
	_, queue, s := start(t)
	url := text(queue.URL())
	id := queue.Send("x")
	first := s.receiveOne(t, url)
	if err := s.changeVisibility(t, url, first.ReceiptHandle, 0); err != nil {
		t.Fatal(err)
	}
	second := s.receiveOne(t, url)
	s.delete(t, url, first.ReceiptHandle)
	if queue.Deleted(id) {
		t.Error("the handle of the first receive deleted the message after the second")
	}
	s.delete(t, url, second.ReceiptHandle)
	if !queue.Deleted(id) {
		t.Error("the latest handle deleted nothing")
	}
}

func TestDuplicate(t *testing.T) {
	t.Parallel()
	_, queue, s := start(t)
	url := text(queue.URL())
	id := queue.Send("x")
	queue.Duplicate(1)
	messages := s.receive(t, url, 0)
	if len(messages) != 2 || *messages[0].MessageId != id || *messages[1].MessageId != id {
		t.Fatalf("received %d messages, want the same one twice", len(messages))
	}
	if *messages[0].ReceiptHandle == *messages[1].ReceiptHandle {
		t.Error("both copies have one receipt handle")
	}
	s.delete(t, url, messages[0].ReceiptHandle)
	s.delete(t, url, messages[1].ReceiptHandle)
	if !queue.Deleted(id) {
		t.Error("the handle of the first copy deleted nothing")
	}

	// If one answer has no room, the copy comes with the next, even though the first is deleted by then.
	id = queue.Send("y")
	queue.Duplicate(1)
	for range 2 {
		m := receiveFor(t, s, url, 30)
		if *m.MessageId != id {
			t.Fatalf("received %s, want %s", *m.MessageId, id)
		}
		s.delete(t, url, m.ReceiptHandle)
	}
	s.wantNone(t, url)
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for code, effect := range map[string]http.HandlerFunc{
		"AccessDenied":        sqsemu.AccessDenied,
		"ServiceUnavailable":  sqsemu.Unavailable,
		"ThrottlingException": sqsemu.Throttling,
		"RequestThrottled":    sqsemu.RequestThrottled,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			server, queue, s := start(t)
			server.Fail(sqsemu.Fault{Effect: effect, Action: "ReceiveMessage", Times: 1})
			queue.Send("x")
			s.count(t, text(queue.URL())) // another action
			_, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: text(queue.URL())})
			wantCode(t, "receive", err, code)
			if n := queue.Messages()[0].ReceiveCount; n != 0 {
				t.Errorf("the failed receive counts %d times", n)
			}
			s.receiveOne(t, text(queue.URL()))
		})
	}
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	server, queue, s := start(t)
	url := text(queue.URL())
	id := queue.Send("x")
	m := s.receiveOne(t, url)
	server.Fail(sqsemu.Fault{Effect: sqsemu.Reset, Action: "DeleteMessage", Times: 1, LoseReply: true})
	if _, err := s.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: url, ReceiptHandle: m.ReceiptHandle}); err == nil {
		t.Error("the delete whose reply was to be lost succeeded")
	}
	if !queue.Deleted(id) {
		t.Error("the delete whose reply was lost took no effect")
	}
}

func TestLeftLongPollTakesNothing(t *testing.T) {
	t.Parallel()
	_, queue, s := start(t)
	url := text(queue.URL())
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			_, _ = s.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: url, WaitTimeSeconds: 20})
		}()
		wantWaiting(t, queue, 1)
		cancel()
		<-left
		// The server learns that a client has left a moment later than the client itself.
		wantWaiting(t, queue, 0)
	}
	queue.Send("x")
	s.receiveOne(t, url)
}

// wantWaiting waits until that many long polls wait at the queue, but not as long as an uninterrupted poll lasts.
func wantWaiting(t *testing.T, queue *sqsemu.Queue, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); queue.Waiting() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d long polls wait after 10 s, want %d", queue.Waiting(), n)
		}
	}
}

func TestCloseEndsLongPolls(t *testing.T) {
	t.Parallel()
	server, queue, s := start(t)
	ended := make(chan error)
	go func() {
		_, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: text(queue.URL()), WaitTimeSeconds: 20})
		ended <- err
	}()
	for server.Requests("ReceiveMessage") == 0 {
		time.Sleep(time.Millisecond)
	}
	server.Close()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a long poll succeeded on a closed server")
		}
	case <-time.After(5 * time.Second):
		t.Error("a long poll outlived the server")
	}
}

// TestBurst makes several consumers share 2,000 messages: each is delivered once, and all get deleted.
func TestBurst(t *testing.T) {
	t.Parallel()
	_, queue, s := start(t)
	const messages = 2000
	for i := range messages {
		queue.Send(strconv.Itoa(i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	delivered := consume(ctx, s, queue, 4)
	if err := queue.WaitEmpty(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	if n := delivered(); n != messages {
		t.Errorf("delivered %d messages, want %d", n, messages)
	}
}

// consume receives and deletes in batches until the context ends; the returned function waits for the end and
// counts.
func consume(ctx context.Context, s *service, queue *sqsemu.Queue, consumers int) (delivered func() int) {
	var n atomic.Int64
	var all sync.WaitGroup
	url := text(queue.URL())
	for range consumers {
		all.Go(func() {
			for ctx.Err() == nil {
				out, err := s.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: 10, WaitTimeSeconds: 20})
				if err != nil || len(out.Messages) == 0 {
					continue
				}
				n.Add(int64(len(out.Messages)))
				var entries []types.DeleteMessageBatchRequestEntry
				for _, m := range out.Messages {
					entries = append(entries, deleteEntry(*m.MessageId, m.ReceiptHandle))
				}
				_, _ = s.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: url, Entries: entries})
			}
		})
	}
	return func() int {
		all.Wait()
		return int(n.Load())
	}
}

// BenchmarkConsume measures messages received and deleted in batches of ten, through the SDK.
func BenchmarkConsume(b *testing.B) {
	_, queue, s := start(b)
	for i := range b.N {
		queue.Send(strconv.Itoa(i))
	}
	ctx, cancel := context.WithCancel(b.Context())
	b.ResetTimer()
	delivered := consume(ctx, s, queue, 4)
	if err := queue.WaitEmpty(ctx); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	cancel()
	delivered()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}
