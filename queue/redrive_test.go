package queue

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

func redriveAttribute(policy string) func(context.Context, *sqs.GetQueueAttributesInput) (*sqs.GetQueueAttributesOutput, error) {
	return func(context.Context, *sqs.GetQueueAttributesInput) (*sqs.GetQueueAttributesOutput, error) {
		return &sqs.GetQueueAttributesOutput{Attributes: map[string]string{"RedrivePolicy": policy}}, nil
	}
}

func TestRejectedMessages(t *testing.T) {
	denied := func(context.Context, *sqs.GetQueueAttributesInput) (*sqs.GetQueueAttributesOutput, error) {
		return nil, apiError("AccessDenied")
	}
	tests := []struct {
		name       string
		attributes func(context.Context, *sqs.GetQueueAttributesInput) (*sqs.GetQueueAttributesOutput, error)
		deleted    int
	}{
		{"no redrive policy", nil, 2},
		{"redrive policy", redriveAttribute(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:1:dead","maxReceiveCount":5}`), 0},
		{"not readable", denied, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeClient{Attributes: tt.attributes}
				r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
				f.send("1", "\x1b[31m\xff"+strings.Repeat("x", 100_000), 1)
				f.send("2", testdata(t, "unsupported.json"), 1)
				time.Sleep(3 * time.Second)
				f.send("1", "\x1b[31m\xff"+strings.Repeat("x", 100_000), 2) // comes back if it was left
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if tt.deleted == 0 && len(f.deletions()) > 0 || tt.deleted > 0 && len(f.deletions()) < tt.deleted {
					t.Errorf("deleted %v", f.deletions())
				}
				if diff := cmp.Diff(map[outcome]float64{outcomeMalformed: 1, outcomeUnsupported: 1}, r.outcomes(t)); diff != "" {
					t.Error(diff)
				}
				if n := value(t, r.metrics.rejections(rejectJSON)) + value(t, r.metrics.rejections(rejectDetailType)); n != 2 {
					t.Errorf("%v rejected by reason", n)
				}
				if n := r.log.count("cannot use message"); n != 2 {
					t.Errorf("logged %d times, want once each", n)
				}
				if n := r.log.count("cannot read the queue's redrive policy"); n > 1 {
					t.Errorf("redrive policy logged %d times", n)
				}
				if text := r.log.String(); len(text) > 4000 || strings.Contains(text, "\x1b") {
					t.Errorf("log of %d bytes, or with control characters", len(text))
				}
			})
		})
	}
}

func TestRedrivePolicyIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		var mu sync.Mutex
		policy, reads := "", 0
		f.Attributes = func(ctx context.Context, in *sqs.GetQueueAttributesInput) (*sqs.GetQueueAttributesOutput, error) {
			mu.Lock()
			defer mu.Unlock()
			reads++
			return redriveAttribute(policy)(ctx, in)
		}
		start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		time.Sleep(time.Minute)
		mu.Lock()
		policy = `{"maxReceiveCount":3}`
		mu.Unlock()
		time.Sleep(10 * time.Minute)
		f.send("1", "{", 1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := f.deletions(); len(got) != 0 {
			t.Errorf("deleted %v, though a policy was added", got)
		}
		if reads > 4 {
			t.Errorf("read %d times in 11 minutes", reads)
		}
	})
}
