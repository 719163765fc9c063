package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"spot-handler/handler/interruption"
)

// The call that the receivers make is what keeps their promises.
func TestReceiveCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		const receivers = 4
		var calls atomic.Int32
		var once sync.Once
		f.Receive = func(ctx context.Context, in *sqs.ReceiveMessageInput) (*sqs.ReceiveMessageOutput, error) {
			first := calls.Add(1) <= receivers
			if first && in.WaitTimeSeconds != 1 {
				t.Errorf("first call waits for %d s, want 1, to be ready soon", in.WaitTimeSeconds)
			}
			if first {
				time.Sleep(time.Duration(in.WaitTimeSeconds) * time.Second)
				return &sqs.ReceiveMessageOutput{}, nil
			}
			once.Do(func() {
				if in.MaxNumberOfMessages != 10 || in.WaitTimeSeconds != 20 || in.VisibilityTimeout != 30 || *in.QueueUrl != testQueue {
					t.Errorf("call %+v", in)
				}
				if d, ok := ctx.Deadline(); !ok || time.Until(d) != 30*time.Second {
					t.Errorf("timeout %v", time.Until(d))
				}
			})
			<-ctx.Done()
			return nil, ctx.Err()
		}
		start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		time.Sleep(time.Second / 2)
		if n := len(f.receives()); n != receivers {
			t.Errorf("%d receives at once, want 4", n)
		}
		time.Sleep(2 * time.Minute) // it hangs: 30 s each and a backoff
		if n := len(f.receives()); n < 12 {
			t.Errorf("%d receives, want each of the four to go on", n)
		}
	})
}
