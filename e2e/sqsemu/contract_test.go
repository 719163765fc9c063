package sqsemu_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"os"
	"strings"
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
	{"a queue is made once and found by name", checkCreate},
	{"a bad queue name is refused", checkQueueName},
	{"a queue that is not there is QueueDoesNotExist", checkNoQueue},
	{"attributes are read and set", checkAttributes},
	{"a message arrives as it was sent", checkRoundTrip},
	{"characters beyond the basic plane arrive", checkAstral},
	{"system attributes come when asked for", checkSystemAttributes},
	{"message attributes come when asked for", checkMessageAttributes},
	{"message attributes come when asked for by prefix", checkMessageAttributePrefix},
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
	{"a batch deletes the good and tells of the bad", checkDeleteBatchPartly},
	{"a batch sends what it can", checkSendBatch},
	{"a batch changes visibility", checkChangeBatch},
	{"bad batches are refused whole", checkBadBatches},
	{"one message can have 1 MiB", checkMessageSize},
	{"one batch can have 1 MiB", checkBatchSize},
	{"characters outside XML are refused", checkCharacters},
	{"a message received too often goes to the dead-letter queue", checkRedrive},
	{"a delayed message waits", checkDelay},
	{"a purge empties the queue", checkPurge},
	{"a second purge within a minute is refused", checkPurgeTwice},
}

// service is an SQS under test.
type service struct {
	*sqs.Client
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
		server := sqsemu.Start(sqsemu.Options{})
		t.Cleanup(server.Close)
		(&service{Client: newClient(server.URL)}).run(t)
	})
	t.Run("foreign emulator", func(t *testing.T) {
		t.Parallel()
		endpoint := startForeign(t)
		(&service{Client: newClient(endpoint), except: foreignDeviations}).run(t)
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
		(&service{Client: sqs.NewFromConfig(c, func(o *sqs.Options) { o.BaseEndpoint = &endpoint })}).run(t)
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

// newQueue makes a queue for this test alone; attributes are names and values in turn.
func (s *service) newQueue(t *testing.T, attributes ...string) *string {
	t.Helper()
	name := uniqueName()
	given := map[string]string{}
	for i := 0; i < len(attributes); i += 2 {
		given[attributes[i]] = attributes[i+1]
	}
	out, err := s.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: given})
	if err != nil {
		t.Fatalf("create queue: %v", err)
	}
	t.Cleanup(func() {
		_, _ = s.DeleteQueue(context.WithoutCancel(t.Context()), &sqs.DeleteQueueInput{QueueUrl: out.QueueUrl})
	})
	return out.QueueUrl
}

// uniqueName returns a queue name that no earlier run used either: a real service refuses to reuse one for a
// minute.
func uniqueName() string { return "contract-" + rand.Text() }

func (s *service) send(t *testing.T, queue *string, bodies ...string) (ids []string) {
	t.Helper()
	for _, body := range bodies {
		out, err := s.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: queue, MessageBody: &body})
		if err != nil {
			t.Fatalf("send message: %v", err)
		}
		ids = append(ids, *out.MessageId)
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
