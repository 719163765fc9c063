package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

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
		r := start(t, Options{Client: f, Accepter: a})
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
		for range maxInFlight + 100 {
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
