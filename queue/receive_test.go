package queue

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	smithytime "github.com/aws/smithy-go/time"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/awsfault"
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
					if smithytime.SleepWithContext(ctx, 20*time.Second) != nil {
						return nil, ctx.Err()
					}
					return &sqs.ReceiveMessageOutput{}, nil
				}
				r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
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
				if n := (len(f.receives()) - before) / receivers; n < 30 || n > 60 {
					t.Errorf("%d attempts of each receiver in 10 minutes, want 30 to 60", n)
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
				if n := value(t, r.source.Errors(want)); n < 30*receivers {
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
		start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		time.Sleep(time.Minute)
		if n := len(f.receives()); n > 61*receivers {
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
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := r.outcomes(t)[outcomeMalformed]; n != 1 { // without an id they look like one
			t.Errorf("%v malformed", n)
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
		for i := range maxWaiting + 500 {
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
		if n != maxWaiting {
			t.Errorf("%d launches are waited for, want %d", n, maxWaiting)
		}
	})
}

// A message about a capacity reservation is one about each instance in it that is a Node. If none is, it is
// given back once, and is another cluster's then.
func TestReservationsAreTheirInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		accepted, asked := []interruption.Notice(nil), []string(nil)
		a := &fakeAccepter{AcceptFunc: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			mu.Lock()
			defer mu.Unlock()
			if !strings.HasPrefix(n.InstanceID, "i-") {
				return interruption.Unknown, nil
			}
			accepted = append(accepted, n)
			return interruption.Accepted, nil
		}}
		f := &fakeClient{}
		reserved := func(id string) []string {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, id)
			if id == "cr-0123456789abcdef0" {
				return []string{"i-1", "i-2", "i-3"}
			}
			return nil
		}
		c := New(Options{
			Client: f, QueueURL: testQueue, Accepter: a, Reserved: reserved, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
		})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { _ = c.Run(ctx) })
		defer done.Wait()
		defer cancel()
		at := time.Now().UTC().Format(time.RFC3339)
		body := edit(t, testdata(t, "capacity_block.json"), "2026-01-01T00:00:00Z", at)
		f.send("ours", body, 1)
		f.send("others", edit(t, body, "cr-0123456789abcdef0", "cr-0fedcba9876543210"), 1)
		f.send("single", spotBody("i-single", time.Now()), 1)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		slices.SortFunc(accepted, func(a, b interruption.Notice) int { return strings.Compare(a.InstanceID, b.InstanceID) })
		var got []string
		for _, n := range accepted {
			got = append(got, fmt.Sprint(n.InstanceID, " ", n.Kind, " ", n.Reservation))
		}
		want := []string{
			"i-1 capacity-block-expiration cr-0123456789abcdef0",
			"i-2 capacity-block-expiration cr-0123456789abcdef0",
			"i-3 capacity-block-expiration cr-0123456789abcdef0",
			"i-single spot-interruption ",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("accepted (-want +got):\n%s", diff)
		}
		deleted := f.deletions()
		slices.Sort(deleted)
		if diff := cmp.Diff([]string{"h-ours", "h-single"}, deleted); diff != "" {
			t.Errorf("deleted (-want +got):\n%s", diff)
		}
		slices.Sort(asked)
		if diff := cmp.Diff([]string{"cr-0123456789abcdef0", "cr-0fedcba9876543210"}, slices.Compact(asked)); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		if back := f.visibility(); !slices.ContainsFunc(back, func(v change) bool { return v.handle == "h-others" }) {
			t.Errorf("the message about nobody's instances is not given back: %+v", back)
		}
	})
}

// Messages of many notices take room according to their number: what does not fit is
// left to the queue, and others are received meanwhile.
func TestLargeMessagesTakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := make([]string, 6000)
		for i := range ids {
			ids[i] = fmt.Sprintf("i-%d", i)
		}
		a := &fakeAccepter{AcceptFunc: func(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
			if n.InstanceID == "i-single" {
				return interruption.Accepted, nil
			}
			return "", errAway
		}}
		f := &fakeClient{}
		c := New(Options{Client: f, QueueURL: testQueue, Accepter: a, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop()})
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { _ = c.Run(ctx) })
		body := healthBody(time.Now(), ids...)
		for i := range 5 {
			f.send(fmt.Sprint("large-", i), body, 1)
		}
		f.send("single", spotBody("i-single", time.Now()), 1)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"h-single"}, f.deletions()); diff != "" {
			t.Error(diff)
		}
		time.Sleep(prolongAt)
		kept := map[string]bool{} // hidden for longer, as they are in work
		for _, change := range f.visibility() {
			kept[change.handle] = true
		}
		if len(kept) != 2 {
			t.Errorf("%v are in work, want the two large messages that fit", kept)
		}
		cancel()
		done.Wait()
	})
}
