package queue

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

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

// What cannot be read of a message is told once, and the rest is handled.
func TestPartOfAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a := &fakeClient{}, &fakeAccepter{}
		r := start(t, Options{Client: f, Accepter: a})
		body := strings.Replace(healthBody(time.Now(), "i-1", "BAD", "i-2"), "BAD", "../etc", 1)
		f.send("1", body, 1)
		f.send("1", body, 2)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := len(a.notices()); n != 4 {
			t.Errorf("%d notices accepted, want two of each delivery", n)
		}
		if n, logged := value(t, r.metrics.rejected(rejectInstanceID)), r.log.count("cannot use part of message"); n != 1 || logged != 1 {
			t.Errorf("rejected %v times and logged %d times, want once each", n, logged)
		}
		if diff := cmp.Diff(map[outcome]float64{outcomeAccepted: 2}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
	})
}

// A message that is understood and asks for nothing goes without a word.
func TestNothingToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a := &fakeClient{}, &fakeAccepter{}
		r := start(t, Options{Client: f, Accepter: a})
		f.send("1", strings.ReplaceAll(testdata(t, "test_notification.json"), "2026-01-01", "2000-01-01"), 1)
		f.send("2", fmt.Sprintf(`{"id":"1","detail-type":"EC2 Instance State-change Notification","source":"aws.ec2","time":%q,`+
			`"detail":{"instance-id":"i-1","state":"running"}}`, time.Now().UTC().Format(time.RFC3339)), 1)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(a.notices()) != 0 || len(f.deletions()) != 2 {
			t.Errorf("submitted %v, deleted %v", a.notices(), f.deletions())
		}
		if diff := cmp.Diff(map[outcome]float64{outcomeIgnored: 2}, r.outcomes(t)); diff != "" {
			t.Error(diff)
		}
		if n := strings.Count(r.log.String(), "\n"); n != 1 {
			t.Errorf("%d lines are logged, want the first alone: %s", n, r.log)
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
		c.keeper.mu.Lock()
		kept := len(c.keeper.messages)
		c.keeper.mu.Unlock()
		if kept != 2 {
			t.Errorf("%d large messages are in work, want the two that fit", kept)
		}
		cancel()
		done.Wait()
	})
}

// Messages that nobody can read, alone in a queue without a dead-letter queue that could
// take them, and read again as often as SQS gives them: no call more than that, each is
// logged and counted once, and a good message in between is handled at once.
func TestPoisonAloneForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poison := []string{"malformed_garbage.txt", "malformed_truncated.txt", "malformed_health_entities.json", "malformed_capacity_time.json",
			"malformed_lifecycle_no_instance.json", "malformed_sns_twice.json", "malformed_state_type.json", "unsupported.json"}
		attributes := redriveAttribute(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:1:dead","maxReceiveCount":1000}`)
		f, a := &fakeClient{Attributes: attributes}, &fakeAccepter{}
		r := start(t, Options{Client: f, Accepter: a})
		const minutes = 10
		for round := range minutes * 2 { // SQS shows them again every 30 s
			for i, name := range poison {
				f.send(fmt.Sprint("poison-", i), testdata(t, name), round+1)
			}
			time.Sleep(hiddenFor)
		}
		synctest.Wait()
		if n := len(f.receives()); n > minutes*2*(len(poison)+2*defaultReceivers) {
			t.Errorf("%d receives in ten minutes", n)
		}
		if n := r.log.count("cannot use message"); n != len(poison) {
			t.Errorf("logged %d times, want each of %d once", n, len(poison))
		}
		if got := f.visibility(); len(got) > 0 || len(f.deletions()) > 0 || len(a.notices()) > 0 {
			t.Errorf("%d changes of visibility, %d deletions, %d notices of messages that are left alone", len(got), len(f.deletions()), len(a.notices()))
		}
		if err := r.Healthy(); err != nil {
			t.Errorf("not healthy: %v", err)
		}
		began := time.Now()
		f.send("good", spotBody("i-1", began), 1)
		time.Sleep(1100 * time.Millisecond) // the fake looks every second
		synctest.Wait()
		if diff := cmp.Diff([]string{"h-good"}, f.deletions()); diff != "" {
			t.Error(diff)
		}
		for _, n := range a.notices() {
			if took := n.Received.Sub(began); took > 2*time.Second {
				t.Errorf("received after %v", took)
			}
		}
		if got := r.outcomes(t); got[outcomeMalformed] != float64(len(poison)-1) || got[outcomeUnsupported] != 1 || got[outcomeAccepted] != 1 {
			t.Errorf("outcomes %v", got)
		}
	})
}
