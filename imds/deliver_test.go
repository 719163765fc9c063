package imds

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

func TestNoticeIsRetriedWhilePollingGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		away := errors.New("api server is away")
		var until time.Time
		a.AcceptFunc = func(context.Context, interruption.Notice) (interruption.Verdict, error) {
			if time.Now().Before(until) {
				return "", away
			}
			return interruption.Accepted, nil
		}
		until = time.Now().Add(time.Minute)
		w.set(actionPath, spotBody(time.Now().Add(2*time.Minute)))
		_, log := start(t, w, a)
		time.Sleep(2 * time.Second)
		w.mu.Lock()
		delete(w.values, actionPath) // not forgotten, even if it cannot be read again
		w.mu.Unlock()
		time.Sleep(3 * time.Minute)

		got := a.notices()
		if len(got) < 10 || len(got) > 25 {
			t.Errorf("%d attempts in a minute, want 10 to 25", len(got))
		}
		for _, n := range got[1:] {
			if diff := cmp.Diff(got[0], n); diff != "" {
				t.Errorf("notice changed between attempts: %s", diff)
			}
		}
		if n := len(w.times(actionPath)); n < 80 {
			t.Errorf("%d polls in 3 minutes, want about 90", n)
		}
		if n := log.count("cannot accept notice"); n < 1 || n > 5 {
			t.Errorf("logged %d times", n)
		}
		if n := log.count("notice settled"); n != 1 {
			t.Errorf("settled %d times, want once", n)
		}
	})
}

func TestHungAcceptCostsOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		var calls atomic.Int32
		a.AcceptFunc = func(ctx context.Context, _ interruption.Notice) (interruption.Verdict, error) {
			if calls.Add(1) == 1 {
				<-ctx.Done()
				return "", ctx.Err()
			}
			return interruption.Accepted, nil
		}
		w.set(actionPath, spotBody(time.Now().Add(2*time.Minute)))
		start(t, w, a)
		time.Sleep(11 * time.Second)
		if n := calls.Load(); n != 2 {
			t.Errorf("%d attempts after 11 s, want a second one", n)
		}
	})
}

func TestNewerNoticeReplacesOneThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		accepted := make(chan interruption.Notice, 10)
		first := time.Now().Add(2 * time.Minute).UTC()
		a.AcceptFunc = func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			if n.Deadline.Equal(first) {
				return "", errors.New("not now")
			}
			accepted <- n
			return interruption.Accepted, nil
		}
		w.set(actionPath, spotBody(first))
		start(t, w, a)
		time.Sleep(20 * time.Second)
		second := first.Add(-time.Minute)
		w.set(actionPath, spotBody(second))
		time.Sleep(3 * time.Second)
		if len(accepted) != 1 {
			t.Fatalf("%d accepted, want the newer one", len(accepted))
		}
		if n := <-accepted; !n.Deadline.Equal(second) {
			t.Errorf("deadline %v, want %v", n.Deadline, second)
		}
	})
}

// While nothing can be accepted the service goes on talking: what is submitted in the end is
// its last word on each event, and one that is refused for a reason of its own does not keep
// the others back.
func TestLastWordOnEachEventIsSubmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		var away = true
		accepted := map[string]interruption.Notice{}
		a.AcceptFunc = func(_ context.Context, n interruption.Notice) (interruption.Verdict, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if away || n.Action == interruption.ActionReboot {
				return "", errors.New("not now")
			}
			accepted[n.EventID] = n
			return interruption.Accepted, nil
		}
		at := time.Now().Add(time.Hour).UTC().Format(eventTime)
		entry := func(id, code, state string) string {
			return fmt.Sprintf(`{"EventId":%q,"Code":%q,"State":%q,"NotBefore":%q}`, id, code, state, at)
		}
		w.set(scheduledPath, list(entry("e-1", "instance-reboot", "active"), entry("e-2", "instance-stop", "active"), entry("e-3", "instance-stop", "active")))
		_, log := start(t, w, a)
		time.Sleep(time.Minute)
		w.set(scheduledPath, list(entry("e-1", "instance-reboot", "active"), entry("e-3", "instance-stop", "active")))
		w.set(historyPath, list(entry("e-2", "instance-stop", "canceled")))
		time.Sleep(time.Minute)
		a.mu.Lock()
		away = false
		a.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()

		a.mu.Lock()
		defer a.mu.Unlock()
		prefix := "imds/" + testInstance + "/scheduled-event/"
		if len(accepted) != 2 || !accepted[prefix+"e-2"].Withdrawn || accepted[prefix+"e-3"].Withdrawn || accepted[prefix+"e-3"].EventID == "" {
			t.Errorf("accepted %+v, want the withdrawal of e-2, and e-3", accepted)
		}
		if n := log.count("cannot accept notice"); n < 3 || n > 24 { // of four words the first attempt, the second, the fourth...
			t.Errorf("logged %d times", n)
		}
	})
}

// A notice that can be settled only later is no failure.
func TestNotYetIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		until := time.Now().Add(time.Minute)
		a.AcceptFunc = func(context.Context, interruption.Notice) (interruption.Verdict, error) {
			if time.Now().Before(until) {
				return "", fmt.Errorf("node is not ready: %w", interruption.ErrNotYet)
			}
			return interruption.Accepted, nil
		}
		w.set(lifecyclePath, "Terminated")
		_, log := start(t, w, a)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if log.count("cannot accept") != 0 || log.count("notice settled") != 1 {
			t.Error("it was reported as a failure, or never settled")
		}
	})
}
