package sqsemu_test

import (
	"slices"
	"strconv"
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
	queue := s.newQueue(t)
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

func sendEntry(id, body string) types.SendMessageBatchRequestEntry {
	return types.SendMessageBatchRequestEntry{Id: &id, MessageBody: &body}
}

func checkSendBatch(t *testing.T, s *service) {
	queue := s.newQueue(t)
	var entries []types.SendMessageBatchRequestEntry
	var want, got []string
	for i := range 10 {
		body := "body " + strconv.Itoa(i)
		entries, want = append(entries, sendEntry("e"+strconv.Itoa(i), body)), append(want, body)
	}
	out, err := s.SendMessageBatch(t.Context(), &sqs.SendMessageBatchInput{QueueUrl: queue, Entries: entries})
	if err != nil || len(out.Successful) != 10 {
		t.Fatalf("send batch: %v, %v", out, err)
	}
	for len(got) < 10 {
		messages := s.receive(t, queue, 2)
		if len(messages) == 0 {
			break
		}
		for _, m := range messages {
			got = append(got, *m.Body)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("received %q", got)
	}

	mixed, err := s.SendMessageBatch(t.Context(), &sqs.SendMessageBatchInput{QueueUrl: queue, Entries: []types.SendMessageBatchRequestEntry{
		sendEntry("good", "x"), sendEntry("bad", "bell \a"),
	}})
	if err != nil || len(mixed.Successful) != 1 || len(mixed.Failed) != 1 || *mixed.Failed[0].Id != "bad" || *mixed.Failed[0].Code != "InvalidMessageContents" {
		t.Errorf("one good, one bad: %+v, %v", mixed, err)
	}
}

func checkChangeBatch(t *testing.T, s *service) {
	queue := s.newQueue(t)
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
	queue := s.newQueue(t)
	handle := text("not a handle")
	remove := func(ids ...string) error {
		entries := []types.DeleteMessageBatchRequestEntry{}
		for _, id := range ids {
			entries = append(entries, deleteEntry(id, handle))
		}
		_, err := s.DeleteMessageBatch(t.Context(), &sqs.DeleteMessageBatchInput{QueueUrl: queue, Entries: entries})
		return err
	}
	send := func(ids ...string) error {
		entries := []types.SendMessageBatchRequestEntry{}
		for _, id := range ids {
			entries = append(entries, sendEntry(id, "x"))
		}
		_, err := s.SendMessageBatch(t.Context(), &sqs.SendMessageBatchInput{QueueUrl: queue, Entries: entries})
		return err
	}
	for name, call := range map[string]func(...string) error{"delete": remove, "send": send} {
		wantError[*types.EmptyBatchRequest](t, name+" nothing", call())
		wantError[*types.TooManyEntriesInBatchRequest](t, name+" eleven", call(strings.Split("abcdefghijk", "")...))
		wantError[*types.BatchEntryIdsNotDistinct](t, name+" twice the same", call("a", "a"))
		wantError[*types.InvalidBatchEntryId](t, name+" a bad id", call("a.b"))
	}
}

func checkBatchSize(t *testing.T, s *service) {
	queue := s.newQueue(t)
	half := strings.Repeat("x", 1<<19)
	_, err := s.SendMessageBatch(t.Context(), &sqs.SendMessageBatchInput{QueueUrl: queue, Entries: []types.SendMessageBatchRequestEntry{
		sendEntry("a", half), sendEntry("b", half), sendEntry("c", "x"),
	}})
	wantError[*types.BatchRequestTooLong](t, "1 MiB and one byte", err)
}
