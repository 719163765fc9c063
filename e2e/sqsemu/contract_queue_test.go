package sqsemu_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

func checkCreate(t *testing.T, s *service) {
	name := uniqueName()
	create := func(timeout string) (*sqs.CreateQueueOutput, error) {
		return s.CreateQueue(t.Context(), &sqs.CreateQueueInput{
			QueueName: &name, Attributes: map[string]string{"VisibilityTimeout": timeout},
		})
	}
	first, err := create("40")
	if err != nil {
		t.Fatal(err)
	}
	defer s.DeleteQueue(t.Context(), &sqs.DeleteQueueInput{QueueUrl: first.QueueUrl})
	if again, err := create("40"); err != nil || *again.QueueUrl != *first.QueueUrl {
		t.Errorf("same queue again: got %v, %v", again, err)
	}
	found, err := s.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil || *found.QueueUrl != *first.QueueUrl {
		t.Errorf("find queue: got %v, %v", found, err)
	}
	_, err = create("41")
	wantError[*types.QueueNameExists](t, "same name, other timeout", err)
}

func checkQueueName(t *testing.T, s *service) {
	_, err := s.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: text("a queue")})
	wantCode(t, "name with a blank", err, "InvalidParameterValue")
}

func checkNoQueue(t *testing.T, s *service) {
	gone := text(*s.newQueue(t) + "-not")
	_, err := s.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: text("no-such-queue")})
	wantError[*types.QueueDoesNotExist](t, "get URL", err)
	_, err = s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: gone})
	wantError[*types.QueueDoesNotExist](t, "receive", err)
	_, err = s.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: gone, MessageBody: text("x")})
	wantError[*types.QueueDoesNotExist](t, "send", err)
	_, err = s.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: gone})
	wantError[*types.QueueDoesNotExist](t, "get attributes", err)
}

func checkAttributes(t *testing.T, s *service) {
	queue := s.newQueue(t)
	get := func(names ...types.QueueAttributeName) map[string]string {
		t.Helper()
		out, err := s.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: queue, AttributeNames: names})
		if err != nil {
			t.Fatal(err)
		}
		return out.Attributes
	}
	all := get(types.QueueAttributeNameAll)
	for name, want := range map[string]string{
		"VisibilityTimeout": "30", "MessageRetentionPeriod": "345600", "DelaySeconds": "0", "ReceiveMessageWaitTimeSeconds": "0",
		"MaximumMessageSize": "1048576", "ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesNotVisible": "0",
		"ApproximateNumberOfMessagesDelayed": "0",
	} {
		if all[name] != want {
			t.Errorf("%s of a new queue = %q, want %q", name, all[name], want)
		}
	}
	if arn := all["QueueArn"]; !strings.HasPrefix(arn, "arn:aws:sqs:") || !strings.HasSuffix(arn, (*queue)[strings.LastIndex(*queue, "/")+1:]) {
		t.Errorf("QueueArn = %q", arn)
	}
	set := func(name, value string) error {
		_, err := s.SetQueueAttributes(t.Context(), &sqs.SetQueueAttributesInput{QueueUrl: queue, Attributes: map[string]string{name: value}})
		return err
	}
	if err := set("VisibilityTimeout", "90"); err != nil {
		t.Fatal(err)
	}
	got := get(types.QueueAttributeNameVisibilityTimeout)
	if len(got) != 1 || got["VisibilityTimeout"] != "90" {
		t.Errorf("the one attribute asked for = %v", got)
	}
	wantError[*types.InvalidAttributeValue](t, "timeout of more than 12 h", set("VisibilityTimeout", "43201"))
	wantError[*types.InvalidAttributeValue](t, "retention of less than a minute", set("MessageRetentionPeriod", "59"))
	wantError[*types.InvalidAttributeName](t, "unknown name", set("Colour", "blue"))

	s.send(t, queue, "a", "b", "c")
	if out, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: queue}); err != nil || len(out.Messages) != 1 {
		t.Fatalf("receive one: %v, %v", out, err)
	}
	if visible, hidden := s.count(t, queue); visible != "2" || hidden != "1" {
		t.Errorf("visible, in flight = %s, %s, want 2, 1", visible, hidden)
	}
}

func checkRedrive(t *testing.T, s *service) {
	dead := s.newQueue(t)
	out, err := s.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{
		QueueUrl: dead, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
	})
	if err != nil {
		t.Fatal(err)
	}
	policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"2"}`, out.Attributes["QueueArn"])
	queue := s.newQueue(t, "VisibilityTimeout", "1", "RedrivePolicy", policy)
	id := s.send(t, queue, "poison")[0]
	for range 2 {
		if m := s.receiveOne(t, queue); *m.MessageId != id {
			t.Fatalf("received %s, want %s", *m.MessageId, id)
		}
	}
	if messages := s.receive(t, queue, 2); len(messages) != 0 {
		t.Fatalf("received a third time: %v", messages)
	}
	if m := s.receiveOne(t, dead); *m.MessageId != id || *m.Body != "poison" {
		t.Errorf("in the dead-letter queue: %s %q", *m.MessageId, *m.Body)
	}
}

func (s *service) purge(t *testing.T, queue *string) error {
	_, err := s.PurgeQueue(t.Context(), &sqs.PurgeQueueInput{QueueUrl: queue})
	return err
}

func checkPurge(t *testing.T, s *service) {
	queue := s.newQueue(t)
	s.send(t, queue, "a", "b")
	if err := s.purge(t, queue); err != nil {
		t.Fatal(err)
	}
	s.wantNone(t, queue)
}

func checkPurgeTwice(t *testing.T, s *service) {
	queue := s.newQueue(t)
	if err := s.purge(t, queue); err != nil {
		t.Fatal(err)
	}
	wantError[*types.PurgeQueueInProgress](t, "second purge", s.purge(t, queue))
}
