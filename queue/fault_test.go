package queue

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

func apiError(code string) error {
	return operation("SQS", &smithy.GenericAPIError{Code: code, Message: "no"})
}

func operation(service string, err error) error {
	return &smithy.OperationError{ServiceID: service, OperationName: "Call", Err: err}
}

func status(code int) error {
	return &smithyhttp.ResponseError{Response: &smithyhttp.Response{Response: &http.Response{StatusCode: code}}, Err: errors.New("no")}
}

func TestErrorNamesCallAndQueue(t *testing.T) {
	err := classify("receive from", "sqs:ReceiveMessage", testQueue, apiError("AccessDenied"))
	for _, want := range []string{"receive from queue " + testQueue, "access denied", "sqs:ReceiveMessage"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestFaultsOfReceive(t *testing.T) {
	for _, want := range []awsfault.Reason{awsfault.Denied, awsfault.Throttled, awsfault.NoQueue, awsfault.Unavailable} {
		t.Run(string(want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fault := map[awsfault.Reason]error{
					awsfault.Denied:      apiError("AccessDenied"),
					awsfault.Throttled:   apiError("RequestThrottled"),
					awsfault.NoQueue:     operation("SQS", &types.QueueDoesNotExist{}),
					awsfault.Unavailable: operation("SQS", status(500)),
				}[want]
				f := &fakeClient{}
				var broken atomic.Bool
				f.Receive = func(ctx context.Context, in *sqs.ReceiveMessageInput) (*sqs.ReceiveMessageOutput, error) {
					if broken.Load() {
						return nil, fault
					}
					if !sleep(ctx, 20*time.Second) {
						return nil, ctx.Err()
					}
					return &sqs.ReceiveMessageOutput{}, nil
				}
				r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted), Receivers: 1})
				if r.Healthy() == nil {
					t.Error("healthy before the first receive")
				}
				time.Sleep(59 * time.Second) // long polls alone keep it healthy
				if err := r.Healthy(); err != nil {
					t.Error(err)
				}
				broken.Store(true)
				before := len(f.receives())
				time.Sleep(10 * time.Minute)
				if n := len(f.receives()) - before; n < 30 || n > 60 {
					t.Errorf("%d attempts in 10 minutes, want 30 to 60", n)
				}
				got := f.receives()[before:]
				for i := range got[1:] {
					if gap := got[i+1].Sub(got[i]); gap > 20*time.Second {
						t.Errorf("gap of %v, want at most 20 s", gap)
					}
				}
				if err := r.Healthy(); err == nil || !strings.Contains(err.Error(), testQueue) {
					t.Errorf("healthy error %v, want one that names the queue", err)
				}
				if n := value(t, r.metrics.errors(want)); n < 30 {
					t.Errorf("%v errors of reason %s", n, want)
				}
				if n := r.log.count("cannot receive"); n != 1 {
					t.Errorf("logged %d times, want once", n)
				}
				broken.Store(false)
				time.Sleep(41 * time.Second)
				if err := r.Healthy(); err != nil {
					t.Error(err)
				}
				if n := r.log.count("received again"); n != 1 {
					t.Errorf("recovery logged %d times, want once", n)
				}
			})
		})
	}
}

func TestServiceThatDoesNotWaitIsNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{Receive: func(context.Context, *sqs.ReceiveMessageInput) (*sqs.ReceiveMessageOutput, error) {
			return &sqs.ReceiveMessageOutput{}, nil
		}}
		start(t, Options{Client: f, Accepter: verdict(interruption.Accepted), Receivers: 1})
		time.Sleep(time.Minute)
		if n := len(f.receives()); n > 61 {
			t.Errorf("%d receives in a minute", n)
		}
	})
}

// SQS answers in ways that it never should.
func TestHostileAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		var answered atomic.Bool
		f.Receive = func(ctx context.Context, _ *sqs.ReceiveMessageInput) (*sqs.ReceiveMessageOutput, error) {
			if answered.CompareAndSwap(false, true) {
				return &sqs.ReceiveMessageOutput{Messages: make([]types.Message, 25)}, nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted), Receivers: 1})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := r.outcomes(t)[outcomeMalformed]; n != 1 { // without an id they look like one
			t.Errorf("%v malformed", n)
		}
	})
}
