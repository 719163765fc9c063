package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

var errAway = errors.New("api server is away")

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
