package sqsemu_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"spot-handler/e2e/sqsemu"
)

// start returns an emulator with a queue, and the service that the contract's methods use.
func start(t testing.TB, attributes map[string]string) (*sqsemu.Server, *sqsemu.Queue, *service) {
	t.Helper()
	server := sqsemu.Start(sqsemu.Options{})
	t.Cleanup(server.Close)
	queue, err := server.CreateQueue("interruptions", attributes)
	if err != nil {
		t.Fatal(err)
	}
	return server, queue, &service{Client: newClient(server.URL)}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	server, queue, s := start(t, nil)
	url := text(queue.URL())
	sent := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	first := queue.SendAt("first", sent)
	m := s.receiveOne(t, url)
	s.delete(t, url, m.ReceiptHandle)
	second := queue.Send("second")
	s.receiveOne(t, url)
	third := queue.Send("third")

	want := []sqsemu.Message{
		{ID: first, Body: "first", Sent: sent, ReceiveCount: 1, State: sqsemu.Deleted},
		{ID: second, Body: "second", ReceiveCount: 1, State: sqsemu.InFlight},
		{ID: third, Body: "third", State: sqsemu.Visible},
	}
	got := queue.Messages()
	ignore := cmpopts.IgnoreFields(sqsemu.Message{}, "DeletedAt", "Sent")
	if diff := cmp.Diff(want, got, ignore); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if !got[0].Sent.Equal(sent) || got[0].DeletedAt.IsZero() || !got[1].DeletedAt.IsZero() {
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
	_, queue, s := start(t, nil)
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

func TestRetention(t *testing.T) {
	t.Parallel()
	_, queue, s := start(t, map[string]string{"MessageRetentionPeriod": "60"})
	queue.SendAt("old", time.Now().Add(-61*time.Second))
	queue.Send("new")
	if m := s.receiveOne(t, text(queue.URL())); *m.Body != "new" {
		t.Errorf("received %q", *m.Body)
	}
	if got := queue.Messages()[0]; got.State != sqsemu.Expired {
		t.Errorf("the old message is %s, want expired", got.State)
	}
}

func TestRetentionOfAMessageInFlight(t *testing.T) {
	t.Parallel()
	_, queue, s := start(t, map[string]string{"MessageRetentionPeriod": "3600"})
	queue.SendAt("old", time.Now().Add(-2*time.Minute))
	m := s.receiveOne(t, text(queue.URL()))
	if _, err := s.SetQueueAttributes(t.Context(), &sqs.SetQueueAttributesInput{
		QueueUrl: text(queue.URL()), Attributes: map[string]string{"MessageRetentionPeriod": "60"},
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.changeVisibility(t, text(queue.URL()), m.ReceiptHandle, 30); err == nil || !strings.Contains(err.Error(), "InvalidParameterValue") {
		t.Errorf("error %v, want InvalidParameterValue", err)
	}
	if got := queue.Messages()[0]; got.State != sqsemu.Expired {
		t.Errorf("the message is %s, want expired", got.State)
	}
}

func TestDuplicate(t *testing.T) {
	t.Parallel()
	_, queue, s := start(t, nil)
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
	code := func(want string) func(*testing.T, error) {
		return func(t *testing.T, err error) {
			var apiErr smithy.APIError
			if !errors.As(err, &apiErr) || apiErr.ErrorCode() != want {
				t.Errorf("got error %v, want code %s", err, want)
			}
		}
	}
	for _, test := range []struct {
		name   string
		effect sqsemu.Effect
		check  func(*testing.T, error)
	}{
		{"access denied", sqsemu.AccessDenied, code("AccessDenied")},
		{"unavailable", sqsemu.Unavailable, code("ServiceUnavailable")},
		{"throttling", sqsemu.Throttling, code("ThrottlingException")},
		{"request throttled", sqsemu.RequestThrottled, func(t *testing.T, err error) {
			wantError[*types.RequestThrottled](t, "send", err)
		}},
		{"reset", sqsemu.Reset, func(t *testing.T, err error) {
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("got error %v, want a reset connection", err)
			}
		}},
		{"hang", sqsemu.Hang, func(t *testing.T, err error) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got error %v, want that it was given up", err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server, queue, s := start(t, nil)
			server.Fail(sqsemu.Fault{Effect: test.effect, Action: "SendMessage", Times: 1})
			s.wantNone(t, text(queue.URL())) // another action
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			send := func(ctx context.Context) error {
				_, err := s.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: text(queue.URL()), MessageBody: text("x")})
				return err
			}
			failing := ctx
			if test.effect == sqsemu.Hang {
				failing = givenUp(ctx, server, "SendMessage")
			}
			test.check(t, send(failing))
			if n := len(queue.Messages()); n != 0 {
				t.Errorf("the failed send left %d messages", n)
			}
			if err := send(ctx); err != nil {
				t.Errorf("send after the fault: %v", err)
			}
		})
	}
}

// givenUp returns a context that ends half a second after the server has received the action. Half a second from
// now could pass on a slow machine before the request is made, and the fault would meet the next one.
func givenUp(ctx context.Context, server *sqsemu.Server, action string) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		for server.Requests(action) == 0 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(500 * time.Millisecond)
	}()
	return ctx
}

func TestHangIsClearedAndServed(t *testing.T) {
	t.Parallel()
	server, queue, s := start(t, nil)
	queue.Send("x")
	server.Fail(sqsemu.Fault{Effect: sqsemu.Hang, Times: 1})
	received := make(chan int)
	go func() { received <- len(s.receive(t, text(queue.URL()), 0)) }()
	for server.Requests("ReceiveMessage") == 0 {
		time.Sleep(time.Millisecond)
	}
	server.ClearFaults()
	if n := <-received; n != 1 {
		t.Errorf("received %d messages after the fault was cleared, want 1", n)
	}
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	server, queue, s := start(t, nil)
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
	_, queue, s := start(t, nil)
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
	server, queue, s := start(t, nil)
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
	_, queue, s := start(t, nil)
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
	_, queue, s := start(b, nil)
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
