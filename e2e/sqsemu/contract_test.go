package sqsemu_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"

	"spot-handler/e2e/sqsemu"
	"spot-handler/handler/awsfault"
)

// contract is what AWS documents about SQS and what the daemon or its tests rely on. It uses only the real SDK, so
// it holds this emulator, one that others wrote, and SQS itself to the same text.
var contract = []struct {
	name  string
	check func(*testing.T, *service)
}{
	{"a queue that is not there is QueueDoesNotExist", checkNoQueue},
	{"attributes are read", checkAttributes},
	{"a message arrives as it was sent", checkRoundTrip},
	{"characters beyond the basic plane arrive", checkAstral},
	{"system attributes come when asked for", checkSystemAttributes},
	{"a receive returns ten at most", checkReceiveLimits},
	{"a long poll wakes for a message", checkLongPollWakes},
	{"a long poll ends empty", checkLongPollEnds},
	{"an unhandled message comes back", checkRedelivery},
	{"an old receipt handle is no error", checkOldHandle},
	{"a deleted message stays deleted", checkDelete},
	{"a late delete still deletes", checkLateDelete},
	{"visibility is cut short and prolonged", checkChangeVisibility},
	{"visibility of a message not in flight is MessageNotInflight", checkNotInFlight},
	{"a bad receipt handle is ReceiptHandleIsInvalid", checkBadHandle},
	{"a batch deletes", checkDeleteBatch},
	{"a batch deletes the good and reports the bad", checkDeleteBatchPartly},
	{"a batch changes visibility", checkChangeBatch},
	{"bad batches are refused whole", checkBadBatches},
	{"a message received too often goes to the dead-letter queue", checkRedrive},
}

// service is an SQS under test.
type service struct {
	*sqs.Client
	// create makes a queue for one test, and returns its URL.
	create func(t testing.TB, attributes queueAttributes) string
	// put sends a message, and returns its ID.
	put func(t testing.TB, queue, body string) string
	// except names the cases that are not asserted for this service, with the reason.
	except map[string]string
}

// TestMain lets the cases wait in parallel: they spend their time on timeouts, not on the processor, so the number
// of cores says nothing about how many can run.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "64"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func (s *service) run(t *testing.T) {
	known := 0
	for _, c := range contract {
		if why, ok := s.except[c.name]; ok {
			known++
			t.Logf("not held to %q: %s", c.name, why)
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.check(t, s)
		})
	}
	if known != len(s.except) {
		t.Errorf("%d exceptions, of which %d are in the contract", len(s.except), known)
	}
}

func TestContract(t *testing.T) {
	t.Run("emulator", func(t *testing.T) {
		t.Parallel()
		server := sqsemu.Start()
		t.Cleanup(server.Close)
		emulated(server).run(t)
	})
	t.Run("foreign emulator", func(t *testing.T) {
		t.Parallel()
		endpoint := startForeign(t)
		foreign := overTheWire(newClient(endpoint))
		foreign.except = foreignDeviations
		foreign.run(t)
	})
	endpoint := os.Getenv("SPOT_HANDLER_SQS_ENDPOINT") // SQS itself, with the SDK's own credentials
	if endpoint == "" {
		return
	}
	t.Run("real service", func(t *testing.T) {
		t.Parallel()
		c, err := config.LoadDefaultConfig(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		overTheWire(sqs.NewFromConfig(c, func(o *sqs.Options) { o.BaseEndpoint = &endpoint })).run(t)
	})
}

// newClient returns the real SDK's client without retries, so that every error is seen.
func newClient(endpoint string) *sqs.Client {
	return sqs.New(sqs.Options{
		BaseEndpoint: &endpoint,
		Region:       "us-east-1",
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
		RetryMaxAttempts: 1,
		APIOptions:       []func(*middleware.Stack) error{awsfault.PlainBody},
	})
}

// queueAttributes are those that the contract's queues have.
type queueAttributes struct {
	visibility  int    // in seconds; 0 is the default
	deadLetters string // URL of the dead-letter queue; empty means none
	maxReceives int
}

// emulated is the emulator, whose queues are made and filled by its methods.
func emulated(server *sqsemu.Server) *service {
	queues := map[string]*sqsemu.Queue{}
	var mu sync.Mutex
	return &service{
		Client: newClient(server.URL),
		create: func(_ testing.TB, a queueAttributes) string {
			mu.Lock()
			defer mu.Unlock()
			q := server.CreateQueue(uniqueName(), sqsemu.QueueOptions{
				Visibility:  time.Duration(a.visibility) * time.Second,
				DeadLetters: queues[a.deadLetters],
				MaxReceives: a.maxReceives,
			})
			queues[q.URL()] = q
			return q.URL()
		},
		put: func(_ testing.TB, queue, body string) string {
			mu.Lock()
			defer mu.Unlock()
			return queues[queue].Send(body)
		},
	}
}

// overTheWire is a service whose queues are made and filled by its API.
func overTheWire(client *sqs.Client) *service {
	return &service{
		Client: client,
		create: func(t testing.TB, a queueAttributes) string {
			t.Helper()
			given := map[string]string{}
			if a.visibility > 0 {
				given["VisibilityTimeout"] = strconv.Itoa(a.visibility)
			}
			if a.deadLetters != "" {
				out, err := client.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{
					QueueUrl: &a.deadLetters, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
				})
				if err != nil {
					t.Fatalf("get ARN of the dead-letter queue: %v", err)
				}
				given["RedrivePolicy"] = fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"%d"}`, out.Attributes["QueueArn"], a.maxReceives)
			}
			out, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: text(uniqueName()), Attributes: given})
			if err != nil {
				t.Fatalf("create queue: %v", err)
			}
			t.Cleanup(func() {
				_, _ = client.DeleteQueue(context.WithoutCancel(t.Context()), &sqs.DeleteQueueInput{QueueUrl: out.QueueUrl})
			})
			return *out.QueueUrl
		},
		put: func(t testing.TB, queue, body string) string {
			t.Helper()
			out, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &queue, MessageBody: &body})
			if err != nil {
				t.Fatalf("send message: %v", err)
			}
			return *out.MessageId
		},
	}
}

// newQueue makes a queue for this test alone, which hides messages for so many seconds; 0 is the default.
func (s *service) newQueue(t *testing.T, visibility int) *string {
	t.Helper()
	return text(s.create(t, queueAttributes{visibility: visibility}))
}

// uniqueName returns a queue name that no earlier run used either: a real service refuses to reuse one for a
// minute.
func uniqueName() string { return "contract-" + rand.Text() }

func (s *service) send(t *testing.T, queue *string, bodies ...string) (ids []string) {
	t.Helper()
	for _, body := range bodies {
		ids = append(ids, s.put(t, *queue, body))
	}
	return ids
}

// receive asks for up to ten messages with their receive counts.
func (s *service) receive(t *testing.T, queue *string, wait int32) []types.Message {
	t.Helper()
	out, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
		QueueUrl: queue, MaxNumberOfMessages: 10, WaitTimeSeconds: wait,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameApproximateReceiveCount},
	})
	if err != nil {
		t.Fatalf("receive messages: %v", err)
	}
	return out.Messages
}

// receiveOne waits for a message and wants it to be the only one.
func (s *service) receiveOne(t *testing.T, queue *string) types.Message {
	t.Helper()
	messages := s.receive(t, queue, 5)
	if len(messages) != 1 {
		t.Fatalf("received %d messages, want 1", len(messages))
	}
	return messages[0]
}

func (s *service) wantNone(t *testing.T, queue *string) {
	t.Helper()
	if messages := s.receive(t, queue, 0); len(messages) != 0 {
		t.Fatalf("received %q, want nothing", *messages[0].Body)
	}
}

// wantHidden checks that no message comes while the one in the queue is hidden, for that long after since or a
// little longer. It is false if one came after that time, which says nothing about whether it was hidden before.
func (s *service) wantHidden(t *testing.T, queue *string, since time.Time, hidden time.Duration) (inTime bool) {
	t.Helper()
	messages := s.receive(t, queue, 0)
	if took := time.Since(since); len(messages) != 0 && took < hidden {
		t.Fatalf("received %q after %v, want nothing for %v", *messages[0].Body, took, hidden)
	}
	return len(messages) == 0
}

// inTime repeats what a machine that is slow, or pauses, did not do before a timeout of the service ran out. The
// timeouts are short to keep the tests short; try reports whether it was in time.
func inTime(t *testing.T, try func() bool) {
	t.Helper()
	for range 10 {
		if try() {
			return
		}
	}
	t.Fatal("too slow for a timeout of the service, ten times")
}

func (s *service) count(t *testing.T, queue *string) (visible, hidden string) {
	t.Helper()
	out, err := s.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{
		QueueUrl: queue, AttributeNames: []types.QueueAttributeName{
			types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
		},
	})
	if err != nil {
		t.Fatalf("get queue attributes: %v", err)
	}
	return out.Attributes["ApproximateNumberOfMessages"], out.Attributes["ApproximateNumberOfMessagesNotVisible"]
}

// wantError checks for the SDK's typed error E.
func wantError[E error](t *testing.T, call string, err error) {
	t.Helper()
	var want E
	if !errors.As(err, &want) {
		t.Errorf("%s: got error %v, want %T", call, err, want)
	}
}

// wantCode checks for an error that the SDK has no type for.
func wantCode(t *testing.T, call string, err error, code string) {
	t.Helper()
	var apiErr smithy.APIError
	if !errors.As(err, &apiErr) || !strings.Contains(apiErr.ErrorCode(), code) {
		t.Errorf("%s: got error %v, want code %s", call, err, code)
	}
}

func text(s string) *string { return aws.String(s) }
