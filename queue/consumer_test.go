package queue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"spot-handler/handler/interruption"
)

var errAway = errors.New("api server is away")

func TestOutcomes(t *testing.T) {
	tests := []struct {
		name    string
		verdict interruption.Verdict
		want    outcome
	}{
		{"accepted", interruption.Accepted, outcomeAccepted},
		{"duplicate", interruption.Duplicate, outcomeDuplicate},
		{"stale", interruption.Stale, outcomeStale},
		{"ignored", interruption.Ignored, outcomeIgnored},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeClient{}
				r := start(t, Options{Client: f, Accepter: verdict(tt.verdict)})
				f.send("1", spotBody("i-1", time.Now()), 1)
				time.Sleep(3 * time.Second)
				synctest.Wait()
				if diff := cmp.Diff([]string{"h-1"}, f.deletions()); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(map[outcome]float64{tt.want: 1}, r.outcomes(t)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

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

// A message that waits holds up neither a receiver nor the others of its batch.
func TestOneThatWaitsHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		a := &fakeAccepter{AcceptFunc: func(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
			if n.InstanceID == "i-slow" {
				<-ctx.Done()
				return "", ctx.Err()
			}
			return interruption.Accepted, nil
		}}
		r := start(t, Options{Client: f, Accepter: a, Receivers: 1})
		time.Sleep(2500 * time.Millisecond)
		now := time.Now()
		f.send("slow", spotBody("i-slow", now), 1)
		f.send("poison", "{", 1)
		for _, id := range []string{"a", "b", "c"} {
			f.send(id, spotBody("i-"+id, now), 1)
		}
		time.Sleep(time.Second) // the fake's long poll looks once a second
		synctest.Wait()
		if n := len(f.deletions()); n != 4 {
			t.Errorf("%d deleted, want the poison and the three good ones", n)
		}
		f.send("later", spotBody("i-later", now), 1)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := r.outcomes(t)[outcomeAccepted]; n != 4 {
			t.Errorf("%v accepted, want 4", n)
		}
	})
}

func TestAcceptIsRetriedInMemoryAndStaysHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		back := time.Now().Add(3 * time.Minute)
		a := &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) {
			if time.Now().Before(back) {
				return "", errAway
			}
			return interruption.Accepted, nil
		}}
		r := start(t, Options{Client: f, Accepter: a})
		began := time.Now()
		for _, id := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"} {
			f.send(id, spotBody("i-"+id, began), 1)
		}
		time.Sleep(4 * time.Minute)
		synctest.Wait()

		if diff := cmp.Diff(map[outcome]float64{outcomeAccepted: 12}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		if n := len(f.deletions()); n != 12 {
			t.Errorf("%d deleted, want 12", n)
		}
		hidden := began.Add(hiddenFor) // never visible in between, never given back
		for _, c := range f.visibility() {
			if c.handle != "h-1" {
				continue
			}
			if c.seconds != 30 {
				t.Errorf("visibility changed to %d s", c.seconds)
			}
			if hidden.Sub(c.at) < 5*time.Second {
				t.Errorf("prolonged %v before the end, want room for another attempt", hidden.Sub(c.at))
			}
			hidden = c.at.Add(hiddenFor)
		}
		if hidden.Before(back) {
			t.Errorf("visible again at %v, before it was accepted", hidden)
		}
		if n := len(a.notices()); n < 12*30 || n > 12*100 {
			t.Errorf("%d attempts for 12 messages in 3 minutes", n)
		}
		if n := r.log.count("cannot accept notice"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		if n := r.log.count("can be accepted again"); n != 1 {
			t.Errorf("recovery logged %d times, want once", n)
		}
	})
}

func TestGivesUpFiveMinutesPastTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		a := &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) { return "", errAway }}
		r := start(t, Options{Client: f, Accepter: a})
		f.send("spot", spotBody("i-1", time.Now()), 1)
		f.send("rebalance", rebalanceBody("i-2", time.Now()), 1)
		time.Sleep(7*time.Minute - time.Second)
		if got := r.outcomes(t); len(got) != 0 {
			t.Errorf("ended early: %v", got)
		}
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(map[outcome]float64{outcomeFailed: 1}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		time.Sleep(maxWork)
		synctest.Wait()
		if diff := cmp.Diff(map[outcome]float64{outcomeFailed: 2}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		if got := f.deletions(); len(got) != 0 {
			t.Errorf("deleted %v", got)
		}
		for _, c := range f.visibility() {
			if c.seconds != 30 {
				t.Errorf("given back: %+v", c)
			}
		}
	})
}

func TestUnknownInstanceIsLookedForTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Unknown)})
		f.send("1", spotBody("i-1", time.Now()), 1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := f.visibility(); len(got) != 1 || got[0].seconds != 5 {
			t.Fatalf("visibility %v, want 5 s", got)
		}
		if got := r.outcomes(t); len(got) != 0 {
			t.Errorf("counted before its end: %v", got)
		}
		f.send("1", spotBody("i-1", time.Now()), 2)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(map[outcome]float64{outcomeForeign: 1}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"h-1"}, f.deletions()); diff != "" {
			t.Error(diff)
		}

		// A count that is missing, or hostile, does not make it go round for ever.
		f.send("2", spotBody("i-2", time.Now()), 0)
		time.Sleep(3 * time.Second)
		f.send("2", spotBody("i-2", time.Now()), 0)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := r.outcomes(t)[outcomeForeign]; n != 2 {
			t.Errorf("%v foreign, want 2", n)
		}
	})
}

// With one receive before the dead-letter queue there is no second look.
func TestUnknownInstanceOnItsLastReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{Attributes: redriveAttribute(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:1:dead","maxReceiveCount":"1"}`)}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Unknown)})
		f.send("1", spotBody("i-1", time.Now()), 1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(map[outcome]float64{outcomeForeign: 1}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
	})
}

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
		{"not parseable", redriveAttribute(`{`), 0},
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
				if n := value(t, r.metrics.rejected(rejectJSON)) + value(t, r.metrics.rejected(rejectDetailType)); n != 2 {
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

func TestDryRunLeavesMessagesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		a := &fakeAccepter{AcceptFunc: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			switch n.InstanceID {
			case "i-away":
				return "", errAway
			case "i-foreign":
				return interruption.Unknown, nil
			}
			return interruption.Accepted, nil
		}}
		r := start(t, Options{Client: f, Accepter: a, DryRun: true})
		for round := 1; round <= 3; round++ {
			for _, id := range []string{"good", "foreign", "away"} {
				f.send(id, spotBody("i-"+id, time.Now()), round)
			}
			f.send("poison", "{", round)
			time.Sleep(hiddenFor + 10*time.Second)
		}
		r.stop()
		if len(f.deletions()) != 0 || len(f.visibility()) != 0 {
			t.Errorf("deleted %v, changed %v", f.deletions(), f.visibility())
		}
		want := map[outcome]float64{outcomeAccepted: 1, outcomeForeign: 1, outcomeMalformed: 1, outcomeFailed: 3}
		if diff := cmp.Diff(want, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
	})
}

// What was accepted is deleted even when the process is told to stop meanwhile, and
// what was not is released to others.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		a := &fakeAccepter{AcceptFunc: func(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
			<-ctx.Done()
			if n.InstanceID == "i-durable" {
				return interruption.Accepted, nil
			}
			return "", ctx.Err()
		}}
		r := start(t, Options{Client: f, Accepter: a})
		f.send("durable", spotBody("i-durable", time.Now()), 1)
		f.send("not", spotBody("i-not", time.Now()), 1)
		time.Sleep(3 * time.Second)
		r.stop()
		if diff := cmp.Diff([]string{"h-durable"}, f.deletions()); diff != "" {
			t.Error(diff)
		}
		if got := f.visibility(); len(got) != 1 || got[0].handle != "h-not" || got[0].seconds != 0 {
			t.Errorf("visibility %v, want the other released", got)
		}
		if diff := cmp.Diff(map[outcome]float64{outcomeAccepted: 1}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestShutdownIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		f.Delete = func(ctx context.Context, _ *sqs.DeleteMessageBatchInput) (*sqs.DeleteMessageBatchOutput, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		f.send("1", spotBody("i-1", time.Now()), 1)
		time.Sleep(4 * time.Second)
		began := time.Now()
		r.stop()
		if d := time.Since(began); d > shutdownTimeout {
			t.Errorf("stopped after %v, want %v", d, shutdownTimeout)
		}
	})
}

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

// Instances that start, by the thousand, do not hold up the notice of one that ends; they
// are bounded too, and what is beyond is left to the queue.
func TestLaunchHooksHoldUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body, err := os.ReadFile("testdata/lifecycle_launch.json")
		if err != nil {
			t.Fatal(err)
		}
		var launching sync.Map
		a := &fakeAccepter{AcceptFunc: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			if n.Hook == nil {
				return interruption.Accepted, nil
			}
			launching.Store(n.InstanceID, true)
			return "", interruption.ErrNotYet
		}}
		f := &fakeClient{}
		start(t, Options{Client: f, Accepter: a})
		for i := range maxLaunching + 500 {
			text := strings.NewReplacer("i-1234567890abcdef0", fmt.Sprintf("i-%017x", i), "2026-01-01T00:00:00Z", time.Now().UTC().Format(time.RFC3339)).Replace(string(body))
			f.send("launch", text, 1)
		}
		f.send("spot", spotBody("i-1", time.Now()), 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"h-spot"}, f.deletions()); diff != "" {
			t.Error(diff)
		}
		n := 0
		launching.Range(func(any, any) bool { n++; return true })
		if n != maxLaunching {
			t.Errorf("%d launches are waited for, want %d", n, maxLaunching)
		}
	})
}

// Messages in flight are bounded: receivers wait when there are too many.
func TestInFlightIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		a := &fakeAccepter{AcceptFunc: func(ctx context.Context, _ interruption.Notice) (interruption.Verdict, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}}
		r := start(t, Options{Client: f, Accepter: a})
		body := spotBody("i-1", time.Now())
		for range 2500 {
			f.send("same", body, 1)
		}
		time.Sleep(10 * time.Second)
		// A receiver takes room for a whole batch, so that the last places may stay free.
		if n := len(a.notices()); n > maxInFlight || n <= maxInFlight-batchSize {
			t.Errorf("%d in flight, want %d, less than a batch fewer", n, maxInFlight)
		}
		time.Sleep(2 * time.Minute)
		if err := r.Healthy(); err == nil {
			t.Error("healthy, though nothing has been received for two minutes")
		}
	})
}

func TestMessageAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		time.Sleep(900 * time.Millisecond)
		f.send("old", spotBody("i-1", time.Now().Add(-90*time.Minute)), 1)
		f.send("ahead", spotBody("i-2", time.Now().Add(10*time.Second)), 1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		var out dto.Metric
		if err := r.metrics.age.Write(&out); err != nil {
			t.Fatal(err)
		}
		h := out.GetHistogram()
		if h.GetSampleCount() != 2 || h.GetSampleSum() < 5400 || h.GetSampleSum() > 5402 {
			t.Errorf("count %d, sum %v, want 2 and the age of one", h.GetSampleCount(), h.GetSampleSum())
		}
		if len(h.GetBucket()) != 12 || h.GetSchema() == 0 && h.ZeroThreshold == nil {
			t.Error("want classic and native buckets")
		}
	})
}
