package sqsemu_test

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

func checkNoQueue(t *testing.T, s *service) {
	gone := text(*s.newQueue(t, 0) + "-not")
	_, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: gone})
	wantError[*types.QueueDoesNotExist](t, "receive", err)
	_, err = s.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: gone, ReceiptHandle: text("x")})
	wantError[*types.QueueDoesNotExist](t, "delete", err)
	_, err = s.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: gone})
	wantError[*types.QueueDoesNotExist](t, "get attributes", err)
}

func checkAttributes(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
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
		"VisibilityTimeout": "30", "ApproximateNumberOfMessages": "0", "ApproximateNumberOfMessagesNotVisible": "0", "RedrivePolicy": "",
	} {
		if all[name] != want {
			t.Errorf("%s of a new queue = %q, want %q", name, all[name], want)
		}
	}
	if arn := all["QueueArn"]; !strings.HasPrefix(arn, "arn:aws:sqs:") || !strings.HasSuffix(arn, (*queue)[strings.LastIndex(*queue, "/")+1:]) {
		t.Errorf("QueueArn = %q", arn)
	}
	got := get(types.QueueAttributeNameVisibilityTimeout)
	if len(got) != 1 || got["VisibilityTimeout"] != "30" {
		t.Errorf("the one attribute asked for = %v", got)
	}

	s.send(t, queue, "a", "b", "c")
	if out, err := s.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: queue}); err != nil || len(out.Messages) != 1 {
		t.Fatalf("receive one: %v, %v", out, err)
	}
	if visible, hidden := s.count(t, queue); visible != "2" || hidden != "1" {
		t.Errorf("visible, in flight = %s, %s, want 2, 1", visible, hidden)
	}
}

func checkRedrive(t *testing.T, s *service) {
	dead := s.newQueue(t, 0)
	queue := text(s.create(t, queueAttributes{visibility: 1, deadLetters: *dead, maxReceives: 2}))
	out, err := s.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{
		QueueUrl: queue, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameRedrivePolicy},
	})
	if err != nil || !strings.Contains(out.Attributes["RedrivePolicy"], "deadLetterTargetArn") {
		t.Errorf("redrive policy = %v, %v", out, err)
	}
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
