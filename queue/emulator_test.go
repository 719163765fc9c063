package queue

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go/middleware"
	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

func emulator(t testing.TB) *sqsemu.Server {
	t.Helper()
	s := sqsemu.Start()
	t.Cleanup(s.Close)
	return s
}

// realClient is the SDK over a socket.
func realClient(s *sqsemu.Server) *sqs.Client {
	return sqs.NewFromConfig(aws.Config{
		Region:       "us-east-1",
		BaseEndpoint: aws.String(s.URL),
		APIOptions:   []func(*middleware.Stack) error{awsfault.PlainBody},
		Retryer:      func() aws.Retryer { return aws.NopRetryer{} },
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "secret"}, nil
		}),
	})
}

func startReal(t *testing.T, s *sqsemu.Server, q *sqsemu.Queue, a interruption.Accepter) *running {
	t.Helper()
	return start(t, Options{Client: realClient(s), QueueURL: q.URL(), Accepter: a})
}

func waitEmpty(t testing.TB, q *sqsemu.Queue) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := q.WaitEmpty(ctx); err != nil {
		t.Fatalf("wait for an empty queue: %v", err)
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(20 * time.Second); !is(); {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("no %s within 20 s", what)
		}
	}
}

func TestBurstOfAThousand(t *testing.T) {
	s, a := emulator(t), &fakeAccepter{}
	q := s.Queue("q")
	for i := range 1000 {
		q.Send(spotBody(fmt.Sprintf("i-%d", i), time.Now()))
	}
	began := time.Now()
	r := startReal(t, s, q, a)
	waitEmpty(t, q)
	t.Logf("1,000 messages received, accepted and deleted in %v: %d receives, %d deletions",
		time.Since(began).Round(time.Millisecond), s.Requests("ReceiveMessage"), s.Requests("DeleteMessageBatch"))
	if n := len(a.notices()); n != 1000 {
		t.Errorf("%d accepted, want each once", n)
	}
	r.stop()
	if n := r.outcomes(t)[outcomeAccepted]; n != 1000 {
		t.Errorf("%v counted", n)
	}
}

func TestPoisonBetweenGoodOnes(t *testing.T) {
	s, a := emulator(t), &fakeAccepter{}
	q := s.Queue("q")
	for i := range 20 {
		q.Send(spotBody(fmt.Sprintf("i-%d", i), time.Now()))
		q.Send(strings.Repeat("garbage", 30_000))
	}
	r := startReal(t, s, q, a)
	waitEmpty(t, q)
	r.stop()
	got := r.outcomes(t)
	if got[outcomeAccepted] != 20 || got[outcomeMalformed] != 20 {
		t.Errorf("outcomes %v, want 20 and 20", got)
	}
}

func TestPoisonIsLeftForTheDeadLetterQueue(t *testing.T) {
	s := emulator(t)
	q := s.CreateQueue("q", sqsemu.QueueOptions{DeadLetters: s.Queue("dead"), MaxReceives: 2})
	poison, good := q.Send("{"), q.Send(spotBody("i-1", time.Now()))
	r := startReal(t, s, q, &fakeAccepter{})
	waitFor(t, "deletion", func() bool { return q.Deleted(good) })
	waitFor(t, "rejection", func() bool { return r.outcomes(t)[outcomeMalformed] == 1 })
	r.stop()
	if q.Deleted(poison) {
		t.Error("poison deleted, though there is a redrive policy")
	}
}

func TestDuplicatesOverTheWire(t *testing.T) {
	s := emulator(t)
	q := s.Queue("q")
	seen := make(chan string, 100)
	a := &fakeAccepter{AcceptFunc: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
		seen <- n.EventID
		return interruption.Accepted, nil
	}}
	q.Duplicate(5)
	for i := range 5 {
		q.Send(spotBody(fmt.Sprintf("i-%d", i), time.Now()))
	}
	r := startReal(t, s, q, a)
	waitFor(t, "both copies", func() bool { return len(seen) == 10 })
	waitEmpty(t, q)
	r.stop()
	times := map[string]int{}
	for range 10 {
		times[<-seen]++
	}
	for id, n := range times {
		if n != 2 {
			t.Errorf("event %s submitted %d times, want under the same id twice", id, n)
		}
	}
}

// impatient hides what it receives for a second instead of thirty, so that a test
// need not wait for what a process left behind.
type impatient struct{ *sqs.Client }

func (i impatient) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, opts ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	in.VisibilityTimeout = 1
	return i.Client.ReceiveMessage(ctx, in, opts...)
}

// A process that ends between Accept and the deletion leaves the message to the next.
func TestRedeliveryAfterACrash(t *testing.T) {
	t.Parallel()
	s := emulator(t)
	q := s.Queue("q")
	s.Fail(sqsemu.Fault{Effect: sqsemu.Unavailable, Action: "DeleteMessageBatch"})
	id := q.Send(spotBody("i-1", time.Now()))
	a := &fakeAccepter{}
	ctx, cancel := context.WithCancel(t.Context())
	a.AcceptFunc = func(context.Context, interruption.Notice) (interruption.Verdict, error) {
		cancel()
		return interruption.Accepted, nil
	}
	first := New(Options{Client: impatient{realClient(s)}, QueueURL: q.URL(), Accepter: a, Logger: zerolog.Nop()})
	if err := first.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if q.Deleted(id) {
		t.Fatal("deleted by a call that failed")
	}
	s.ClearFaults()

	b := verdict(interruption.Duplicate)
	second := startReal(t, s, q, b)
	waitEmpty(t, q)
	second.stop()
	if got := second.outcomes(t); got[outcomeDuplicate] != 1 {
		t.Errorf("outcomes %v, want one duplicate", got)
	}
	if x, y := a.notices()[0].EventID, b.notices()[0].EventID; x != y {
		t.Errorf("event ids %s and %s, want the same", x, y)
	}
}

// A consumer that stops gives what it could not accept to another one at once.
func TestHandOver(t *testing.T) {
	s := emulator(t)
	q := s.Queue("q")
	tried := make(chan struct{}, 1000)
	first := startReal(t, s, q, &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) {
		tried <- struct{}{}
		return "", errAway
	}})
	q.Send(spotBody("i-1", time.Now()))
	<-tried
	first.stop()
	second := startReal(t, s, q, &fakeAccepter{})
	waitEmpty(t, q)
	second.stop()
	if got := second.outcomes(t); got[outcomeAccepted] != 1 {
		t.Errorf("outcomes %v, want it accepted by the second", got)
	}
}

func TestForeignOverTheWire(t *testing.T) {
	s := emulator(t)
	q := s.Queue("q")
	for i := range 30 {
		q.Send(spotBody(fmt.Sprintf("i-%d", i), time.Now()))
	}
	r := startReal(t, s, q, verdict(interruption.Unknown))
	waitEmpty(t, q)
	r.stop()
	if got := r.outcomes(t); got[outcomeForeign] != 30 {
		t.Errorf("outcomes %v, want 30 foreign", got)
	}
	for _, m := range q.Messages() {
		if m.ReceiveCount != 2 {
			t.Errorf("received %d times, want a second look", m.ReceiveCount)
		}
	}
}

func TestFaultsOverTheWire(t *testing.T) {
	for _, action := range []string{"ReceiveMessage", "DeleteMessageBatch", "GetQueueAttributes"} {
		for _, tt := range []struct {
			name   string
			effect http.HandlerFunc
			reason awsfault.Reason
		}{
			{"access denied", sqsemu.AccessDenied, awsfault.Denied},
			{"request throttled", sqsemu.RequestThrottled, awsfault.Throttled},
			{"throttling", sqsemu.Throttling, awsfault.Throttled},
			{"unavailable", sqsemu.Unavailable, awsfault.Unavailable},
			{"reset", sqsemu.Reset, awsfault.Connection},
		} {
			t.Run(action+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				s, a := emulator(t), &fakeAccepter{}
				q := s.Queue("q")
				s.Fail(sqsemu.Fault{Effect: tt.effect, Times: 2, Action: action})
				q.Send(spotBody("i-1", time.Now()))
				r := startReal(t, s, q, a)
				waitEmpty(t, q)
				waitFor(t, "error of that reason", func() bool { return value(t, r.source.Errors(tt.reason)) >= 1 })
				r.stop()
				if got := r.outcomes(t); got[outcomeAccepted] != 1 {
					t.Errorf("outcomes %v", got)
				}
			})
		}
	}
}

// Deletions take a call that hangs for callTimeout, while other work goes on.
func TestHungDeletion(t *testing.T) {
	t.Parallel()
	s, a := emulator(t), &fakeAccepter{}
	q := s.Queue("q")
	s.Fail(sqsemu.Fault{Delay: sqsemu.Unanswered, Times: 1, Action: "DeleteMessageBatch"})
	q.Send(spotBody("i-1", time.Now()))
	r := startReal(t, s, q, a)
	waitFor(t, "deletion that hangs", func() bool { return s.Requests("DeleteMessageBatch") >= 1 })
	q.Send(spotBody("i-2", time.Now()))
	waitEmpty(t, q)
	r.stop()
	// Others may time out too where the machine is slow.
	if n := value(t, r.source.Errors(awsfault.Timeout)); n < 1 {
		t.Errorf("%v timeouts", n)
	}
}

func TestNoSuchQueue(t *testing.T) {
	s := emulator(t)
	r := start(t, Options{Client: realClient(s), QueueURL: s.URL + "/000000000000/none", Accepter: &fakeAccepter{}})
	waitFor(t, "error", func() bool { return value(t, r.source.Errors(awsfault.NoQueue)) > 0 })
	waitFor(t, "readiness", func() bool { return strings.Contains(r.Healthy().Error(), "does not exist") })
}

func TestNoServer(t *testing.T) {
	s := emulator(t)
	q := s.Queue("q")
	s.Close()
	r := startReal(t, s, q, &fakeAccepter{})
	waitFor(t, "error", func() bool { return value(t, r.source.Errors(awsfault.Connection)) > 0 })
}

// EventBridge sends the messages about every instance to the queue of every cluster. Each
// cluster finds all of its own in its queue, and deletes the rest.
func TestTwoClustersWithAQueueEach(t *testing.T) {
	t.Parallel()
	s := emulator(t)
	const each = 100
	clusters := []string{"a", "b"}
	for _, cluster := range clusters {
		q := s.Queue(cluster)
		for i := range each {
			for _, other := range clusters {
				q.Send(spotBody(fmt.Sprintf("i-%s%d", other, i), time.Now()))
			}
		}
		r := startReal(t, s, q, &fakeAccepter{AcceptFunc: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			if strings.HasPrefix(n.InstanceID, "i-"+cluster) {
				return interruption.Accepted, nil
			}
			return interruption.Unknown, nil
		}})
		waitEmpty(t, q)
		r.stop()
		if diff := cmp.Diff(map[outcome]float64{outcomeAccepted: each, outcomeForeign: each}, r.outcomes(t)); diff != "" {
			t.Errorf("cluster %s: %s", cluster, diff)
		}
	}
}
