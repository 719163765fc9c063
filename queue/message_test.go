package queue

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"spot-handler/handler/interruption"
)

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

// What cannot be read of a message is reported once, and the rest is handled.
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
		if n, logged := value(t, r.metrics.rejections(rejectInstanceID)), r.log.count("cannot use part of message"); n != 1 || logged != 1 {
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

// Messages that nobody can read, alone in a queue without a dead-letter queue that could
// take them, and read again as often as SQS gives them: no call more than that, each is
// logged and counted once, and a good message in between is handled at once.
func TestPoisonAloneForTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poison := []string{"malformed_garbage.txt", "malformed_truncated.txt", "malformed_health_entities.json", "malformed_capacity_time.json", "malformed_capacity_block_id.json",
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
		if n := len(f.receives()); n > minutes*2*(len(poison)+2*receivers) {
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
