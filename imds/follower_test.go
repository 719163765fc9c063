package imds

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// lists plays both lists of scheduled events, one reading after another.
type lists struct {
	*testing.T
	follower *follower
	now      time.Time
}

func newLists(t *testing.T) *lists { return &lists{t, newFollower(), newYear} }

// read returns what a reading of both lists announces, as "ID word".
func (l *lists) read(scheduled, history string) (said []string) {
	l.Helper()
	l.now = l.now.Add(30 * time.Second)
	active, err := l.follower.scheduled(reading{[]byte(scheduled), true, l.now})
	if err != nil {
		l.Logf("scheduled: %v", err)
	}
	over, err := l.follower.history(reading{[]byte(history), true, l.now})
	if err != nil {
		l.Logf("history: %v", err)
	}
	for _, a := range append(active, over...) {
		if a.notice.Withdrawn != (a.word == "withdrawn") {
			l.Errorf("withdrawn %t, but the word is %q", a.notice.Withdrawn, a.word)
		}
		word, _, _ := strings.Cut(a.word, " ")
		said = append(said, a.name+" "+word)
	}
	return said
}

func (l *lists) want(got []string, want ...string) {
	l.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		l.Error(diff)
	}
}

func entry(id, state string) string {
	return `{"EventId":"` + id + `","Code":"instance-stop","State":"` + state + `","NotBefore":"21 Jan 2026 09:00:43 GMT"}`
}

func list(entries ...string) string { return "[" + strings.Join(entries, ",") + "]" }

func TestAnEventIsFollowed(t *testing.T) {
	a, b := entry("a", "active"), entry("b", "active")
	t.Run("ends in the history", func(t *testing.T) {
		l := newLists(t)
		l.want(l.read(list(a, b), "[]"), "a stop", "b stop")
		l.want(l.read(list(b), list(entry("a", "canceled"))), "b stop", "a withdrawn")
		l.want(l.read("[]", list(entry("a", "canceled"), entry("b", "completed"))), "a withdrawn", "b withdrawn")
	})
	t.Run("ends in its list", func(t *testing.T) {
		l := newLists(t)
		l.want(l.read(list(a), "[]"), "a stop")
		l.want(l.read(list(entry("a", "canceled")), "[]"), "a withdrawn")
	})
	t.Run("ended before this process began", func(t *testing.T) {
		l := newLists(t)
		l.want(l.read("[]", list(entry("a", "completed"))), "a withdrawn")
	})
	t.Run("is in neither list", func(t *testing.T) {
		l := newLists(t)
		l.want(l.read(list(a), "[]"), "a stop")
		gone := func() {
			t.Helper()
			for range maxMissing - 1 {
				l.want(l.read("[]", "[]"))
			}
		}
		gone()
		l.want(l.read(list(a), "[]"), "a stop") // a slip
		gone()
		l.want(l.read("[]", "[]"), "a withdrawn")
		gone()
		l.want(l.read(list(a), "[]"), "a stop")
	})
	t.Run("may be what could not be read", func(t *testing.T) {
		l := newLists(t)
		l.want(l.read(list(a, b), "[]"), "a stop", "b stop")
		for range 2 * maxMissing {
			l.want(l.read(list(`{"EventId":7}`, b), "[]"), "b stop")
			l.want(l.read("<html>", "[]"))
		}
	})
	t.Run("stands while it is listed as active", func(t *testing.T) {
		l := newLists(t)
		l.want(l.read(list(entry("a", "canceled"), a), list(entry("a", "canceled"))), "a stop")
		l.want(l.read(list(a, a), list(entry("a", "completed"))), "a stop")
	})
	t.Run("is in a history that can be read when its list cannot", func(t *testing.T) {
		l := newLists(t)
		l.want(l.read("<html>", list(entry("a", "canceled"))))
	})
	t.Run("is past its window", func(t *testing.T) {
		past := strings.Replace(a, "}", `,"NotAfter":"21 Jan 2026 10:00:00 GMT"}`, 1)
		l := newLists(t)
		l.now = time.Date(2026, 1, 21, 9, 30, 0, 0, time.UTC)
		l.want(l.read(list(past), "[]"), "a stop")
		l.now = l.now.Add(time.Hour)
		for range 5 {
			l.want(l.read(list(past), "[]")) // EC2 has not said how it went
		}
		l.want(l.read("[]", list(entry("a", "completed"))), "a withdrawn")
		later := newLists(t)
		later.now = l.now
		l.want(later.read(list(past), "[]"))
	})
}

// However many events a broken service makes up, what is remembered of them is bounded.
func TestFollowerIsBounded(t *testing.T) {
	l := newLists(t)
	for i := range 100 {
		entries := []string{`{"EventId":7}`}
		for j := range maxEvents - 1 {
			entries = append(entries, entry(fmt.Sprintf("e-%d-%d", i, j), "active"))
		}
		l.read(list(entries...), "[]")
	}
	if n := len(l.follower.open); n > maxFollowed {
		t.Errorf("%d events followed", n)
	}
}

// However EC2 says that an event is over, its withdrawal is submitted once, under the id of
// what it takes back.
func TestScheduledEventIsWithdrawn(t *testing.T) {
	window := func() time.Time { return time.Now().Add(20 * time.Minute).Truncate(time.Second).UTC() }
	tests := map[string]func(w *wire, at time.Time){
		"canceled in the list":  func(w *wire, at time.Time) { w.set(scheduledPath, eventBody("e-1", "canceled", at)) },
		"completed in the list": func(w *wire, at time.Time) { w.set(scheduledPath, eventBody("e-1", "completed", at)) },
		"moved to the history": func(w *wire, at time.Time) {
			w.set(scheduledPath, "[]")
			w.set(historyPath, eventBody("e-1", "canceled", at))
		},
		"no list any more": func(w *wire, at time.Time) {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.values, scheduledPath)
		},
		"an empty answer": func(w *wire, at time.Time) { w.set(scheduledPath, "") },
	}
	for name, end := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a := newWire(), &fakeAccepter{}
				at := window()
				w.set(scheduledPath, eventBody("e-1", "active", at))
				start(t, w, a)
				time.Sleep(2 * time.Minute)
				end(w, at)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				got := a.notices()
				if len(got) != 2 || got[0].Withdrawn || !got[1].Withdrawn || got[0].EventID != got[1].EventID || !got[1].Deadline.Equal(at) {
					t.Fatalf("submitted %+v, want the event and its withdrawal", got)
				}
				w.set(scheduledPath, eventBody("e-1", "active", at))
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := a.notices(); len(got) != 3 || got[2].Withdrawn {
					t.Errorf("announced again: submitted %+v", got[2:])
				}
			})
		})
	}
}

func TestRescheduledEventIsSubmittedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		at := time.Now().Add(20 * time.Minute).Truncate(time.Second)
		w.set(scheduledPath, eventBody("e-1", "active", at))
		start(t, w, a)
		time.Sleep(time.Minute)
		w.set(scheduledPath, eventBody("e-1", "active", at.Add(24*time.Hour)))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := a.notices(); len(got) != 2 || got[0].EventID != got[1].EventID || !got[1].Deadline.Equal(at.Add(24*time.Hour)) {
			t.Errorf("submitted %+v, want the new time under the same id", got)
		}
	})
}

// An event of an unknown kind is all there, so what is missing beside it is missing.
func TestMissingBesideAnOddEvent(t *testing.T) {
	odd := `{"EventId":"odd","Code":"melt","State":"active","NotBefore":"21 Jan 2026 09:00:43 GMT"}`
	l := newLists(t)
	l.want(l.read(list(entry("a", "active")), "[]"), "a stop")
	for range maxMissing - 1 {
		l.want(l.read(list(odd), "[]"), "odd maintenance")
	}
	l.want(l.read(list(odd), "[]"), "odd maintenance", "a withdrawn")
}
