package imds

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
)

// paths are those of each kind.
var paths = map[interruption.Kind][]string{
	interruption.SpotInterruption:        {actionPath},
	interruption.InstanceTerminating:     {lifecyclePath},
	interruption.RebalanceRecommendation: {rebalancePath},
	interruption.ScheduledEvent:          {scheduledPath, historyPath},
}

// announceAll has the service announce every kind that it knows.
func (w *wire) announceAll(at time.Time) {
	w.set(actionPath, spotBody(at))
	w.set(rebalancePath, `{"noticeTime":"`+time.Now().UTC().Format(time.RFC3339)+`"}`)
	w.set(lifecyclePath, "Terminated")
	w.set(scheduledPath, eventBody("instance-event-1", "active", at))
}

func eventBody(id, state string, at time.Time) string {
	return fmt.Sprintf(`[{"EventId":%q,"Code":"instance-stop","State":%q,"NotBefore":%q}]`, id, state, at.UTC().Format(eventTime))
}

func TestEveryKindIsSubmittedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		at := time.Now().Add(2 * time.Minute)
		w.announceAll(at)
		start(t, w, a)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		events, deadlines := map[string]int{}, map[interruption.Kind]time.Time{}
		for _, n := range a.notices() {
			events[n.EventID]++
			deadlines[n.Kind] = n.Deadline
		}
		stamp, began := at.UTC().Format(time.RFC3339), at.Add(-2*time.Minute).UTC().Format(time.RFC3339)
		if diff := cmp.Diff(map[string]int{
			"imds/" + testInstance + "/spot-interruption/" + stamp:        1,
			"imds/" + testInstance + "/rebalance-recommendation/" + began: 1,
			"imds/" + testInstance + "/instance-terminating/Terminated":   1,
			"imds/" + testInstance + "/scheduled-event/instance-event-1":  1,
		}, events); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[interruption.Kind]time.Time{
			interruption.SpotInterruption: at.UTC(), interruption.ScheduledEvent: at.UTC(),
			interruption.RebalanceRecommendation: {}, interruption.InstanceTerminating: {},
		}, deadlines); diff != "" {
			t.Error(diff)
		}
	})
}

// What is switched off is not asked for, and does not count for the health.
func TestOnlyTheKindsAskedForArePolled(t *testing.T) {
	for _, only := range Kinds() {
		t.Run(string(only), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a := newWire(), &fakeAccepter{}
				w.announceAll(time.Now().Add(2 * time.Minute))
				w.answer = func(r *http.Request) (*http.Response, error) {
					for kind, ps := range paths {
						for _, path := range ps {
							if kind != only && r.URL.Path == path {
								return response(http.StatusServiceUnavailable, ""), nil
							}
						}
					}
					return nil, nil
				}
				p := New(Options{
					Client: newClient(aws.Config{}, w), Accepter: a, NodeName: "node-1", Kinds: []interruption.Kind{only},
					Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
				})
				run(t, p)
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				for kind, ps := range paths {
					for _, path := range ps {
						if n := len(w.times(path)); (n > 0) != (kind == only) {
							t.Errorf("%s asked for %d times", path, n)
						}
					}
				}
				if got := a.notices(); len(got) != 1 || got[0].Kind != only {
					t.Errorf("submitted %v, want one of kind %s", got, only)
				}
				if err := p.Healthy(); err != nil {
					t.Error(err)
				}
				if age := float64(time.Now().Unix()) - value(t, p.metrics.lastPoll); age > 35 {
					t.Errorf("last poll %v s ago", age)
				}
			})
		})
	}
}

func TestKinds(t *testing.T) {
	if len(Kinds()) != len(paths) || Kinds()[0] != interruption.SpotInterruption {
		t.Errorf("kinds %v, want the %d with paths, spot interruptions first", Kinds(), len(paths))
	}
	for _, s := range subjects(nil) {
		if p := s.period(30 * time.Second); p != 30*time.Second {
			t.Errorf("%s: read every %v at the longest interval", s.path, p)
		}
	}
}

// A lifecycle state that was Terminated and is something else says nothing.
func TestLifecycleStateThatGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		start(t, w, a)
		for _, state := range []string{"InService", "Terminated", "InService", "Warmed:Running", "Terminated"} {
			w.set(lifecyclePath, state)
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		got := a.notices()
		if len(got) != 1 || got[0].Withdrawn || got[0].Action != interruption.ActionTerminate || !got[0].Deadline.IsZero() {
			t.Errorf("submitted %+v, want it once, without a deadline", got)
		}
	})
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
		if n := log.count("cannot accept notice"); n < 3 || n > 20 {
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
			t.Error("it was told as a failure, or never settled")
		}
	})
}

// A path that hangs, or several, delay the look for a spot notice by one reading at most.
func TestLesserPathsThatHangDoNotDelayTheMostUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		w.answer = func(r *http.Request) (*http.Response, error) {
			switch r.URL.Path {
			case actionPath, tokenPath, idPath:
				return nil, nil
			}
			return hang(r)
		}
		start(t, w, &fakeAccepter{})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		asked := w.times(actionPath)
		for i := range asked[1:] {
			if gap := asked[i+1].Sub(asked[i]); gap > 4200*time.Millisecond {
				t.Errorf("gap of %v, want the interval and one timeout at most", gap)
			}
		}
	})
}
