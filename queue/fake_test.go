package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	smithytime "github.com/aws/smithy-go/time"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
)

// The outcomes that are verdicts.
const (
	outcomeAccepted  = outcome(interruption.Accepted)
	outcomeDuplicate = outcome(interruption.Duplicate)
	outcomeStale     = outcome(interruption.Stale)
	outcomeIgnored   = outcome(interruption.Ignored)
	outcomeCompleted = outcome(interruption.Completed)
)

const testQueue = "https://sqs.us-east-1.amazonaws.com/123456789012/interruptions"

// fakeClient answers with its functions; those that are not set succeed, and a
// receive then waits out its long poll.
type fakeClient struct {
	Receive    func(ctx context.Context, in *sqs.ReceiveMessageInput) (*sqs.ReceiveMessageOutput, error)
	Delete     func(ctx context.Context, in *sqs.DeleteMessageBatchInput) (*sqs.DeleteMessageBatchOutput, error)
	Change     func(ctx context.Context, in *sqs.ChangeMessageVisibilityBatchInput) (*sqs.ChangeMessageVisibilityBatchOutput, error)
	Attributes func(ctx context.Context, in *sqs.GetQueueAttributesInput) (*sqs.GetQueueAttributesOutput, error)

	mu       sync.Mutex
	waiting  []types.Message
	received []time.Time
	deleted  []string
	changes  []change
	batches  int // deletions: calls
}

// A change is one of a message's visibility.
type change struct {
	handle  string
	seconds int32
	at      time.Time
}

var _ Client = (*fakeClient)(nil)

// send queues a message for the next receive; its receipt handle is "h-" + id.
func (f *fakeClient) send(id, body string, receives int) {
	m := types.Message{MessageId: aws.String(id), ReceiptHandle: aws.String("h-" + id), Body: aws.String(body)}
	if receives > 0 {
		m.Attributes = map[string]string{"ApproximateReceiveCount": strconv.Itoa(receives)}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = append(f.waiting, m)
}

func (f *fakeClient) ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, _ ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error) {
	f.mu.Lock()
	f.received = append(f.received, time.Now())
	f.mu.Unlock()
	if f.Receive != nil {
		return f.Receive(ctx, in)
	}
	for wait := time.Duration(in.WaitTimeSeconds) * time.Second; ; wait -= time.Second {
		f.mu.Lock()
		n := min(len(f.waiting), int(in.MaxNumberOfMessages))
		got := f.waiting[:n:n]
		f.waiting = f.waiting[n:]
		f.mu.Unlock()
		if n > 0 || wait <= 0 {
			return &sqs.ReceiveMessageOutput{Messages: got}, nil
		}
		if smithytime.SleepWithContext(ctx, time.Second) != nil {
			return nil, ctx.Err()
		}
	}
}

func (f *fakeClient) DeleteMessageBatch(ctx context.Context, in *sqs.DeleteMessageBatchInput, _ ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error) {
	f.mu.Lock()
	f.batches++
	f.mu.Unlock()
	if f.Delete != nil {
		return f.Delete(ctx, in)
	}
	return f.delete(in), nil
}

func (f *fakeClient) delete(in *sqs.DeleteMessageBatchInput) *sqs.DeleteMessageBatchOutput {
	out := &sqs.DeleteMessageBatchOutput{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range in.Entries {
		f.deleted = append(f.deleted, *e.ReceiptHandle)
		out.Successful = append(out.Successful, types.DeleteMessageBatchResultEntry{Id: e.Id})
	}
	return out
}

func (f *fakeClient) ChangeMessageVisibilityBatch(ctx context.Context, in *sqs.ChangeMessageVisibilityBatchInput, _ ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
	out := &sqs.ChangeMessageVisibilityBatchOutput{}
	f.mu.Lock()
	for _, e := range in.Entries {
		f.changes = append(f.changes, change{*e.ReceiptHandle, e.VisibilityTimeout, time.Now()})
		out.Successful = append(out.Successful, types.ChangeMessageVisibilityBatchResultEntry{Id: e.Id})
	}
	f.mu.Unlock()
	if f.Change != nil {
		return f.Change(ctx, in)
	}
	return out, nil
}

func (f *fakeClient) GetQueueAttributes(ctx context.Context, in *sqs.GetQueueAttributesInput, _ ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error) {
	if f.Attributes != nil {
		return f.Attributes(ctx, in)
	}
	return &sqs.GetQueueAttributesOutput{}, nil
}

func (f *fakeClient) deletions() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.deleted...)
}

func (f *fakeClient) visibility() []change {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]change(nil), f.changes...)
}

func (f *fakeClient) receives() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.received...)
}

type fakeAccepter struct {
	AcceptFunc func(ctx context.Context, n interruption.Notice) (interruption.Verdict, error)

	mu  sync.Mutex
	got []interruption.Notice
}

var _ interruption.Accepter = (*fakeAccepter)(nil)

func (f *fakeAccepter) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	f.mu.Lock()
	f.got = append(f.got, n)
	f.mu.Unlock()
	if f.AcceptFunc != nil {
		return f.AcceptFunc(ctx, n)
	}
	return interruption.Accepted, nil
}

func (f *fakeAccepter) notices() []interruption.Notice {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]interruption.Notice(nil), f.got...)
}

// verdict always says the same.
func verdict(v interruption.Verdict) *fakeAccepter {
	return &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) { return v, nil }}
}

// lines counts the log lines that contain a text.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) count(text string) int { return strings.Count(l.String(), text) }

// a running consumer is stopped by the test, or at its end.
type running struct {
	*Consumer
	log  *lines
	stop func()
}

func start(t *testing.T, o Options) *running {
	t.Helper()
	log := &lines{}
	o.Registerer, o.Logger = prometheus.NewRegistry(), zerolog.New(log)
	if o.QueueURL == "" {
		o.QueueURL = testQueue
	}
	c := New(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return &running{c, log, stop}
}

func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// outcomes returns the counts that are not zero.
func (r *running) outcomes(t *testing.T) map[outcome]float64 {
	got := map[outcome]float64{}
	for _, o := range outcomes() {
		if n := value(t, r.metrics.messages(o)); n > 0 {
			got[o] = n
		}
	}
	return got
}

// spotBody is a message about one instance, sent at a time.
func spotBody(instance string, at time.Time) string {
	return fmt.Sprintf(`{"version":"0","id":"event-of-%s","detail-type":"EC2 Spot Instance Interruption Warning","source":"aws.ec2",`+
		`"account":"123456789012","time":%q,"region":"us-east-1","resources":[],"detail":{"instance-id":%q,"instance-action":"terminate"}}`,
		instance, at.UTC().Format(time.RFC3339), instance)
}

func rebalanceBody(instance string, at time.Time) string {
	return fmt.Sprintf(`{"version":"0","id":"event-of-%s","detail-type":"EC2 Instance Rebalance Recommendation","source":"aws.ec2",`+
		`"time":%q,"detail":{"instance-id":%q}}`, instance, at.UTC().Format(time.RFC3339), instance)
}
