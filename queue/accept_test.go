package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

// healthBody is a message about scheduled changes of instances.
func healthBody(at time.Time, instances ...string) string {
	var entities []string
	for _, id := range instances {
		entities = append(entities, fmt.Sprintf(`{"entityValue":%q}`, id))
	}
	return fmt.Sprintf(`{"version":"0","id":"event-of-health","detail-type":"AWS Health Event","source":"aws.health","time":%q,"detail":{`+
		`"eventArn":"arn:aws:health:us-east-1::event/EC2/RETIREMENT/1","service":"EC2","eventTypeCode":"AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",`+
		`"eventTypeCategory":"scheduledChange","statusCode":"upcoming","startTime":%q,"affectedEntities":[%s]}}`,
		at.UTC().Format(time.RFC3339), at.Add(time.Hour).UTC().Format("Mon, 2 Jan 2006 15:04:05 GMT"), strings.Join(entities, ","))
}

func hookBody(instance string, at time.Time) string {
	return fmt.Sprintf(`{"Service":"AWS Auto Scaling","Time":%q,"RequestId":"r","LifecycleTransition":"autoscaling:EC2_INSTANCE_LAUNCHING",`+
		`"AutoScalingGroupName":"nodes","LifecycleHookName":"ready","EC2InstanceId":%q,"LifecycleActionToken":"token"}`, at.UTC().Format(time.RFC3339), instance)
}

// A message with several notices is settled when all are, each is settled once, and the
// message is counted as the most that became of any. Those of unknown instances are
// looked up a second time, as one of them may be registering.
func TestSeveralNotices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tries := map[string]int{}
		a := &fakeAccepter{AcceptFunc: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			mu.Lock()
			defer mu.Unlock()
			tries[n.InstanceID]++
			switch {
			case n.InstanceID == "i-unknown", n.InstanceID == "i-registering" && tries[n.InstanceID] == 1:
				return interruption.Unknown, nil
			case n.InstanceID == "i-away" && tries[n.InstanceID] < 3:
				return "", errAway
			case n.InstanceID == "i-registering":
				return interruption.Accepted, nil
			}
			return interruption.Duplicate, nil
		}}
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: a})
		f.send("1", healthBody(time.Now(), "i-unknown", "i-away", "i-registering", "i-known"), 1)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if got := f.deletions(); len(got) > 0 {
			t.Fatalf("deleted %v before the second look", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"h-1"}, f.deletions()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[outcome]float64{outcomeAccepted: 1}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		mu.Lock()
		defer mu.Unlock()
		if diff := cmp.Diff(map[string]int{"i-unknown": 2, "i-away": 3, "i-registering": 2, "i-known": 1}, tries); diff != "" {
			t.Error(diff)
		}
	})
}

// A message about instances of others alone is given back once, as any other is.
func TestSeveralForeigners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a := &fakeClient{}, verdict(interruption.Unknown)
		r := start(t, Options{Client: f, Accepter: a})
		body := healthBody(time.Now(), "i-1", "i-2", "i-3")
		f.send("1", body, 1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := f.visibility(); len(got) != 1 || got[0].seconds != int32(lookAgain/time.Second) || len(f.deletions()) > 0 {
			t.Fatalf("visibility %v, deleted %v, want it back in the queue", got, f.deletions())
		}
		f.send("1", body, 2)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(map[outcome]float64{outcomeForeign: 1}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		if n := len(a.notices()); n != 6 || len(f.deletions()) != 1 {
			t.Errorf("submitted %d times, deleted %v", n, f.deletions())
		}
	})
}

// A message about a thousand instances does not take a thousand times as long, nor are
// there a thousand calls at once.
func TestManyNoticesSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		a := &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(100 * time.Millisecond)
			mu.Lock()
			now--
			mu.Unlock()
			return interruption.Accepted, nil
		}}
		f := &fakeClient{}
		start(t, Options{Client: f, Accepter: a})
		ids := make([]string, 1000)
		for i := range ids {
			ids[i] = fmt.Sprintf("i-%d", i)
		}
		f.send("1", healthBody(time.Now(), ids...), 1)
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if len(f.deletions()) != 1 || len(a.notices()) != 1000 {
			t.Errorf("%d submitted within 6 s, deleted %v", len(a.notices()), f.deletions())
		}
		mu.Lock()
		defer mu.Unlock()
		if most > acceptsAtOnce || most < acceptsAtOnce/2 {
			t.Errorf("%d side by side, want %d", most, acceptsAtOnce)
		}
	})
}

// A notice that can only be settled later is asked about quietly, for as long as it
// takes, and its message stays hidden.
func TestNotYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := time.Now().Add(20 * time.Minute)
		a := &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) {
			if time.Now().Before(ready) {
				return "", fmt.Errorf("node is not ready: %w", interruption.ErrNotYet)
			}
			return interruption.Completed, nil
		}}
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: a})
		f.send("1", hookBody("i-1", time.Now()), 1)
		time.Sleep(19 * time.Minute)
		synctest.Wait()
		last := time.Time{}
		for _, c := range f.visibility() {
			if c.seconds != int32(hiddenFor/time.Second) || !last.IsZero() && c.at.Sub(last) > hiddenFor {
				t.Errorf("hidden for %d s at %v, and before at %v", c.seconds, c.at, last)
			}
			last = c.at
		}
		if time.Since(last) > hiddenFor || len(f.deletions()) > 0 || len(r.outcomes(t)) > 0 {
			t.Errorf("hidden last at %v, deleted %v, outcomes %v", last, f.deletions(), r.outcomes(t))
		}
		if err := r.Healthy(); err != nil {
			t.Errorf("not healthy: %v", err)
		}
		if n := len(a.notices()); n < 19*60/8 || n > 19*60 {
			t.Errorf("asked %d times in 19 minutes, want every few seconds", n)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if diff := cmp.Diff(map[outcome]float64{outcomeCompleted: 1}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		if len(f.deletions()) != 1 {
			t.Errorf("deleted %v", f.deletions())
		}
		if n := strings.Count(r.log.String(), "\n"); n != 1 {
			t.Errorf("%d lines are logged, want the first alone: %s", n, r.log)
		}
	})
}

// A notice about an instance that is no Node yet is given back once, as any consumer may know
// the instance. After that its message stays hidden until the notice is settled, and takes no
// room from others.
func TestNoNodeYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		appears := time.Now().Add(90 * time.Second)
		a := &fakeAccepter{AcceptFunc: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			switch {
			case n.InstanceID == "i-known", n.InstanceID == "i-appears" && time.Now().After(appears):
				return interruption.Accepted, nil
			case time.Now().After(n.Deadline):
				return interruption.Unknown, nil
			}
			return "", fmt.Errorf("find node: %w", interruption.ErrNoNode)
		}}
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: a})
		began := time.Now()
		f.send("appears", spotBody("i-appears", began), 1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got := f.visibility(); len(got) != 1 || got[0].seconds != int32(lookAgain/time.Second) {
			t.Fatalf("visibility %v, want it back in the queue", got)
		}
		f.send("appears", spotBody("i-appears", began), 2)
		for i := range maxInFlight + 100 { // more than there is room for in work
			f.send(fmt.Sprint("foreign-", i), spotBody(fmt.Sprint("i-", i), began), 2)
		}
		time.Sleep(70 * time.Second)
		f.send("known", spotBody("i-known", began), 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"h-known"}, f.deletions()); diff != "" {
			t.Error(diff)
		}
		for _, c := range f.visibility()[1:] {
			if c.seconds != int32(hiddenFor/time.Second) {
				t.Fatalf("given back: %+v", c)
			}
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(map[outcome]float64{outcomeAccepted: 2}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff(map[outcome]float64{outcomeAccepted: 2, outcomeForeign: maxInFlight + 100}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		if n := len(f.deletions()); n != maxInFlight+102 {
			t.Errorf("%d deleted, want all", n)
		}
	})
	synctest.Test(t, func(t *testing.T) { // no room to wait: left to the queue, and not counted
		a := &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) {
			return "", interruption.ErrNoNode
		}}
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: a})
		if !r.waitRoom.TryAcquire(maxWaiting) {
			t.Fatal("no room from the start")
		}
		f.send("1", spotBody("i-1", time.Now()), 2)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(f.visibility()) > 0 || len(f.deletions()) > 0 || len(r.outcomes(t)) > 0 || len(a.notices()) != 1 {
			t.Errorf("visibility %v, deleted %v, outcomes %v, asked %d times", f.visibility(), f.deletions(), r.outcomes(t), len(a.notices()))
		}
	})
}

// Where the Accepter says that the Node has appeared, the notice is submitted at once.
func TestNodeThatAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, appears := time.Now(), make(chan struct{})
		accepted := make(chan time.Duration, 1)
		a := &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) {
			select {
			case <-appears:
				accepted <- time.Since(began)
				return interruption.Accepted, nil
			default:
				return "", &interruption.NoNodeError{Instance: "i-1", Over: appears}
			}
		}}
		f := &fakeClient{}
		start(t, Options{Client: f, Accepter: a})
		f.send("1", spotBody("i-1", began), 2)
		const after = 61234 * time.Millisecond
		time.Sleep(after)
		close(appears)
		synctest.Wait()
		if took := <-accepted; took != after {
			t.Errorf("accepted after %s, want as soon as the Node has appeared, after %s", took, after)
		}
	})
}

// It is given up after half a day, when SQS would not hide the message any longer; and
// given to the next process at once when this one stops.
func TestNotYetEnds(t *testing.T) {
	never := &fakeAccepter{AcceptFunc: func(context.Context, interruption.Notice) (interruption.Verdict, error) {
		return "", interruption.ErrNotYet
	}}
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: never})
		f.send("1", hookBody("i-1", time.Now()), 1)
		time.Sleep(12 * time.Hour)
		synctest.Wait()
		if diff := cmp.Diff(map[outcome]float64{outcomeFailed: 1}, r.outcomes(t)); diff != "" || len(f.deletions()) > 0 {
			t.Errorf("deleted %v; %s", f.deletions(), diff)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: never})
		f.send("1", hookBody("i-1", time.Now()), 1)
		time.Sleep(4 * time.Second)
		r.stop()
		if got := f.visibility(); len(got) != 1 || got[0].seconds != 0 {
			t.Errorf("visibility %v, want it released", got)
		}
	})
	synctest.Test(t, func(t *testing.T) { // a dry run says nothing of it
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: never, DryRun: true})
		f.send("1", hookBody("i-1", time.Now()), 1)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(r.log.String(), "\n"); n != 1 || len(r.outcomes(t)) > 0 {
			t.Errorf("%d lines, outcomes %v", n, r.outcomes(t))
		}
	})
}

// Where the API server fails beside a notice that can wait, that is said.
func TestNotYetBesideAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &fakeAccepter{AcceptFunc: func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			if n.InstanceID == "i-1" {
				return "", interruption.ErrNotYet
			}
			return "", errAway
		}}
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: a})
		f.send("1", healthBody(time.Now(), "i-1", "i-2"), 1)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := r.log.count("cannot accept notice"); n != 1 || !strings.Contains(r.log.String(), errAway.Error()) {
			t.Errorf("said %d times: %s", n, r.log)
		}
		if r.log.count(`"instance_id":"i-2"`) != 1 {
			t.Errorf("the instance that cannot be recorded is not named: %s", r.log)
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

var errAway = errors.New("api server is away")
