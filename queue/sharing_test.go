package queue

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/handler/interruption"
)

// Two clusters of one size on one queue, as each of them sees it: the one that gets a
// message first gives it back if it does not know the instance.
func TestSharingIsSeen(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var s sharing
		now, lost, warned := time.Now(), 0, 0
		for range 60 {
			now = now.Add(10 * time.Second)
			ours, first, second := r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
			v := sighting{at: now}
			switch {
			case ours && first:
				v.accepted = true
			case ours && second:
				v.accepted, v.secondHand = true, true
			case ours:
				lost++ // the other has deleted it
				continue
			case second:
				v.foreign = true
			default:
				continue
			}
			if _, suspect := s.note(v); suspect {
				warned++
			}
		}
		if warned != 1 {
			t.Errorf("warned %d times while %d messages were lost, want once", warned, lost)
		}
	}
}

func TestSharingIsNotSeen(t *testing.T) {
	now := time.Now()
	tests := map[string]func(i int) sighting{
		"nothing but messages of other clusters": func(int) sighting { return sighting{foreign: true} },
		"one in ten second-hand":                 func(i int) sighting { return sighting{accepted: true, secondHand: i%10 == 0} },
		"a restart with two in hand":             func(i int) sighting { return sighting{accepted: true, secondHand: i < 2} },
		"one an hour": func(i int) sighting {
			return sighting{at: now.Add(time.Duration(i) * time.Hour), accepted: true, secondHand: true}
		},
	}
	for name, what := range tests {
		t.Run(name, func(t *testing.T) {
			var s sharing
			for i := range 300 {
				v := what(i)
				if v.at.IsZero() {
					v.at = now
				}
				if sum, suspect := s.note(v); suspect {
					t.Fatalf("suspicion %+v after %d messages", sum, i)
				}
			}
		})
	}
}

// Over the consumer: somebody else has had our messages first. What we gave back
// ourselves does not count.
func TestSharedQueueIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a dry run shares the queue by intent
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted), DryRun: true})
		for i := range 10 {
			f.send(fmt.Sprint(i), spotBody(fmt.Sprint("i-", i), time.Now()), 2)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := value(t, r.metrics.secondHand); n != 0 || r.log.count("queue of its own") != 0 {
			t.Errorf("%v second-hand in a dry run", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		for i := range 10 {
			c := 1
			if i%3 == 0 {
				c = 2
			}
			f.send(fmt.Sprint(i), spotBody(fmt.Sprint("i-", i), time.Now()), c)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := value(t, r.metrics.secondHand); n != 4 {
			t.Errorf("%v second-hand, want 4", n)
		}
		if n := r.log.count("give each cluster a queue of its own"); n != 1 {
			t.Errorf("said %d times, want once", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		a := &fakeAccepter{}
		r := start(t, Options{Client: f, Accepter: a})
		for i := range 10 { // each of a Node that registers meanwhile
			id := fmt.Sprint(i)
			r.retried.add(id)
			f.send(id, spotBody("i-"+id, time.Now()), 2)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := value(t, r.metrics.secondHand); n != 0 || r.log.count("queue of its own") != 0 {
			t.Errorf("%v second-hand, of messages that we gave back ourselves", n)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &fakeClient{}
		for i := range 10 { // all in the hands of a process that was killed
			f.send(fmt.Sprint(i), spotBody(fmt.Sprint("i-", i), time.Now()), 2)
			first := time.Now().Add(2*time.Second - hiddenFor)
			f.waiting[i].Attributes["ApproximateFirstReceiveTimestamp"] = fmt.Sprint(first.UnixMilli())
		}
		r := start(t, Options{Client: f, Accepter: verdict(interruption.Accepted)})
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := value(t, r.metrics.secondHand); n != 0 || r.log.count("queue of its own") != 0 {
			t.Errorf("%v second-hand, of messages that a process has not lived to settle", n)
		}
	})
}
