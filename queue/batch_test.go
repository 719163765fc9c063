package queue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

func TestFailedDeletionsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		calls := 0
		f.Delete = func(_ context.Context, in *sqs.DeleteMessageBatchInput) (*sqs.DeleteMessageBatchOutput, error) {
			f.mu.Lock()
			calls++
			call := calls
			f.mu.Unlock()
			switch call {
			case 1:
				return nil, apiError("ServiceUnavailable")
			case 2: // one fails, one is refused for good, of one nothing is said
				out := &sqs.DeleteMessageBatchOutput{}
				for i, e := range in.Entries {
					code := "InternalError"
					switch i {
					case 0:
						out.Failed = append(out.Failed, types.BatchResultErrorEntry{Id: e.Id, Code: &code})
					case 1:
						code = "ReceiptHandleIsInvalid"
						out.Failed = append(out.Failed, types.BatchResultErrorEntry{Id: e.Id, Code: &code, SenderFault: true})
					}
				}
				return out, nil
			}
			return f.delete(in), nil
		}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		for _, id := range []string{"1", "2", "3"} {
			f.send(id, spotBody("i-"+id, time.Now()), 1)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(f.deletions()); n < 2 {
			t.Errorf("%d deleted, want the two that may be tried again", n)
		}
		if diff := cmp.Diff(map[outcome]float64{outcomeAccepted: 3}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
	})
}

// That one message of a batch cannot be deleted is said like the failure of all, and so is its end.
func TestFailureOfOneIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, failed := &fakeClient{}, false
		f.Delete = func(_ context.Context, in *sqs.DeleteMessageBatchInput) (*sqs.DeleteMessageBatchOutput, error) {
			f.mu.Lock()
			first := !failed
			failed = true
			f.mu.Unlock()
			if code := "InternalError"; first {
				return &sqs.DeleteMessageBatchOutput{Failed: []types.BatchResultErrorEntry{{Id: in.Entries[0].Id, Code: &code}}}, nil
			}
			return f.delete(in), nil
		}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		f.send("1", spotBody("i-1", time.Now()), 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n, m := r.log.count("cannot delete messages"), r.log.count("messages can be deleted and hidden again"); n != 1 || m != 1 {
			t.Errorf("said %d times that it fails, and %d times that it is over, want each once:\n%s", n, m, r.log)
		}
		if n := len(f.deletions()); n != 1 {
			t.Errorf("%d deleted, want the one", n)
		}
	})
}

func TestBurstIsDeletedInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		time.Sleep(500 * time.Millisecond)
		for i := range 1000 {
			id := string(rune('a'+i%26)) + time.Duration(i).String()
			f.send(id, spotBody("i-1", time.Now()), 1)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := r.outcomes(t)[outcomeAccepted]; n != 1000 {
			t.Errorf("%v accepted in 2 s, want 1,000", n)
		}
		if f.batches > 130 {
			t.Errorf("%d calls for 1,000 deletions", f.batches)
		}
	})
}

// A message in work can outlive the queue's retention. That is no fault of SQS, which would
// call somebody: it is still accepted, and nothing more is asked about it.
func TestMessageThatOutlivesTheQueueIsKeptInMemory(t *testing.T) {
	for _, code := range []string{"InvalidParameterValue", "InvalidParameterValueException", "AWS.SimpleQueueService.MessageNotInflight", "MessageNotInflight"} {
		synctest.Test(t, func(t *testing.T) {
			ready := time.Now().Add(20 * time.Minute)
			a := &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) {
				if time.Now().Before(ready) {
					return "", interruption.ErrNotYet
				}
				return interruption.Completed, nil
			}}
			gone := time.Now().Add(5 * time.Minute)
			f := &fakeClient{}
			f.Change = func(_ context.Context, in *sqs.ChangeMessageVisibilityBatchInput) (*sqs.ChangeMessageVisibilityBatchOutput, error) {
				out := &sqs.ChangeMessageVisibilityBatchOutput{}
				for _, e := range in.Entries {
					if time.Now().Before(gone) {
						out.Successful = append(out.Successful, types.ChangeMessageVisibilityBatchResultEntry{Id: e.Id})
					} else {
						out.Failed = append(out.Failed, types.BatchResultErrorEntry{Id: e.Id, Code: &code, SenderFault: true})
					}
				}
				return out, nil
			}
			r := start(t, Options{Client: f, Accepter: a})
			for i := range 20 {
				f.send(fmt.Sprint(i), hookBody(fmt.Sprint("i-", i), time.Now()), 1)
			}
			time.Sleep(21 * time.Minute)
			synctest.Wait()
			if diff := cmp.Diff(map[outcome]float64{outcomeCompleted: 20}, r.outcomes(t)); diff != "" {
				t.Error(diff)
			}
			for _, reason := range reasons() {
				if n := value(t, r.source.Errors(reason)); n != 0 {
					t.Errorf("%s: %v errors of the source with reason %s", code, n, reason)
				}
			}
			if r.log.count(`"level":"error"`) > 0 {
				t.Errorf("%s: an error is logged: %s", code, r.log)
			}
			for _, c := range f.visibility() {
				if c.at.After(gone.Add(hiddenFor)) {
					t.Errorf("%s: SQS is asked to hide a message that it does not have at %s", code, c.at)
					break
				}
			}
		})
	}
}
