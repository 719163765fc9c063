package sqsemu_test

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

func deleteEntry(id string, handle *string) types.DeleteMessageBatchRequestEntry {
	return types.DeleteMessageBatchRequestEntry{Id: &id, ReceiptHandle: handle}
}

func checkDeleteBatch(t *testing.T, s *service) {
	if out := deleteTwo(t, s, nil); len(out.Successful) != 2 || len(out.Failed) != 0 {
		t.Errorf("got %+v", out)
	}
}

func checkDeleteBatchPartly(t *testing.T, s *service) {
	out := deleteTwo(t, s, text("not a handle"))
	if len(out.Successful) != 2 || *out.Successful[0].Id != "first" || *out.Successful[1].Id != "second" {
		t.Errorf("successful = %+v", out.Successful)
	}
	if len(out.Failed) != 1 || *out.Failed[0].Id != "bad" || *out.Failed[0].Code != "ReceiptHandleIsInvalid" || !out.Failed[0].SenderFault {
		t.Errorf("failed = %+v", out.Failed)
	}
}

// deleteTwo deletes two messages in one batch, with a bad handle between them if one is given.
func deleteTwo(t *testing.T, s *service, bad *string) *sqs.DeleteMessageBatchOutput {
	t.Helper()
	queue := s.newQueue(t, 0)
	s.send(t, queue, "a", "b")
	handles := map[string]*string{}
	for len(handles) < 2 { // a receive may return fewer than there are
		for _, m := range s.receive(t, queue, 5) {
			handles[*m.Body] = m.ReceiptHandle
		}
	}
	entries := []types.DeleteMessageBatchRequestEntry{deleteEntry("first", handles["a"])}
	if bad != nil {
		entries = append(entries, deleteEntry("bad", bad))
	}
	entries = append(entries, deleteEntry("second", handles["b"]))
	out, err := s.DeleteMessageBatch(t.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: queue, Entries: entries})
	if err != nil {
		t.Fatal(err)
	}
	if visible, hidden := s.count(t, queue); visible != "0" || hidden != "0" {
		t.Errorf("visible, in flight = %s, %s, want 0, 0", visible, hidden)
	}
	return out
}

func checkChangeBatch(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	s.send(t, queue, "a")
	m := s.receiveOne(t, queue)
	out, err := s.ChangeMessageVisibilityBatch(t.Context(), &sqs.ChangeMessageVisibilityBatchInput{
		QueueUrl: queue, Entries: []types.ChangeMessageVisibilityBatchRequestEntry{
			{Id: text("good"), ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: 0},
			{Id: text("bad"), ReceiptHandle: text("not a handle"), VisibilityTimeout: 0},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Successful) != 1 || len(out.Failed) != 1 || *out.Failed[0].Code != "ReceiptHandleIsInvalid" {
		t.Errorf("got %+v", out)
	}
	s.receiveOne(t, queue)
}

func checkBadBatches(t *testing.T, s *service) {
	queue := s.newQueue(t, 0)
	handle := text("not a handle")
	remove := func(ids ...string) error {
		entries := []types.DeleteMessageBatchRequestEntry{}
		for _, id := range ids {
			entries = append(entries, deleteEntry(id, handle))
		}
		_, err := s.DeleteMessageBatch(t.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: queue, Entries: entries})
		return err
	}
	wantError[*types.EmptyBatchRequest](t, "nothing", remove())
	wantError[*types.TooManyEntriesInBatchRequest](t, "eleven", remove(strings.Split("abcdefghijk", "")...))
	wantError[*types.BatchEntryIdsNotDistinct](t, "twice the same", remove("a", "a"))
	wantError[*types.InvalidBatchEntryId](t, "a bad id", remove("a.b"))
}
