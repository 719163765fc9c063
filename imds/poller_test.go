package imds

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

func TestPollsAtTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		start(t, w, &fakeAccepter{})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		requests := 0
		for path, every := range map[string]time.Duration{
			actionPath: 2 * time.Second, rebalancePath: 4 * time.Second, lifecyclePath: 4 * time.Second,
			scheduledPath: 30 * time.Second, historyPath: 30 * time.Second,
		} {
			asked := w.times(path)
			requests += len(asked)
			for i := range asked[1:] {
				if gap := asked[i+1].Sub(asked[i]); gap < every*9/10 || gap > every*11/10 {
					t.Errorf("%s: gap of %v, want %v give or take a tenth", path, gap, every)
				}
			}
			if n := int(10 * time.Minute / every); len(asked) < n*9/10 || len(asked) > n*11/10+1 {
				t.Errorf("%s: %d polls in 10 minutes, want about %d", path, len(asked), n)
			}
		}
		if requests > 700 {
			t.Errorf("%d requests in 10 minutes, want about one a second", requests)
		}
		if n := len(w.times(idPath)); n != 1 {
			t.Errorf("instance id read %d times, want once", n)
		}
	})
}

func TestNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		start(t, w, a)
		time.Sleep(time.Minute)
		began := time.Now()
		at := began.Add(2 * time.Minute)
		w.set(actionPath, spotBody(at))
		w.set(rebalancePath, `{"noticeTime":"`+began.UTC().Format(time.RFC3339)+`"}`)
		time.Sleep(time.Minute)

		got := a.notices()
		if len(got) != 2 {
			t.Fatalf("%d notices submitted, want each once: %v", len(got), got)
		}
		if got[0].Kind != interruption.SpotInterruption {
			got[0], got[1] = got[1], got[0]
		}
		if seen := got[0].Received.Sub(began); seen > 2200*time.Millisecond {
			t.Errorf("seen after %v, want one interval", seen)
		}
		stamp := at.UTC().Format(time.RFC3339)
		want := interruption.Notice{
			Kind: interruption.SpotInterruption, Source: interruption.IMDS,
			EventID:    "imds/" + testInstance + "/spot-interruption/" + stamp,
			InstanceID: testInstance, NodeName: "node-1", Action: "terminate",
			Noticed: began.UTC(), Received: got[0].Received, Deadline: at.UTC(),
		}
		if diff := cmp.Diff(want, got[0]); diff != "" {
			t.Error(diff)
		}
		if got[1].Kind != interruption.RebalanceRecommendation || !got[1].Deadline.IsZero() {
			t.Errorf("second notice %+v, want a rebalance recommendation without a deadline", got[1])
		}
	})
}

// The bound that the package comment gives: an announcement during an outage is seen
// 12 s after its end at the latest.
func TestBackoffIsBounded(t *testing.T) {
	faults := map[awsfault.Reason]func(r *http.Request) (*http.Response, error){
		awsfault.Unavailable: func(*http.Request) (*http.Response, error) { return response(http.StatusServiceUnavailable, ""), nil },
		awsfault.Throttled:   func(*http.Request) (*http.Response, error) { return response(http.StatusTooManyRequests, ""), nil },
		awsfault.Connection:  func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") },
		reasonForbidden:      func(*http.Request) (*http.Response, error) { return response(http.StatusForbidden, ""), nil },
		awsfault.Timeout:     hang,
	}
	for want, fault := range faults {
		t.Run(string(want), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a := newWire(), &fakeAccepter{}
				var broken atomic.Bool
				w.answer = func(r *http.Request) (*http.Response, error) {
					if broken.Load() && r.URL.Path != tokenPath {
						return fault(r)
					}
					return nil, nil
				}
				p, log := start(t, w, a)
				time.Sleep(10 * time.Second)
				broken.Store(true)
				before := len(w.times(actionPath))
				time.Sleep(5 * time.Minute)
				if n := len(w.times(actionPath)) - before; n < 25 || n > 60 {
					t.Errorf("%d polls in 5 minutes of outage, want 25 to 60", n)
				}
				if n := value(t, p.source.Errors(want)); n < 50 {
					t.Errorf("%v errors of reason %s", n, want)
				}
				if n := log.count("cannot read instance metadata"); n != len(p.watches) {
					t.Errorf("logged %d times, want once per path", n)
				}
				if err := p.Healthy(); err == nil {
					t.Error("healthy after 5 minutes of outage")
				}

				ended := time.Now()
				w.set(actionPath, spotBody(ended.Add(2*time.Minute)))
				broken.Store(false)
				time.Sleep(maxBackoff + callTimeout)
				synctest.Wait()
				if len(a.notices()) != 1 {
					t.Fatalf("notice not seen %v after the outage", time.Since(ended))
				}
				if err := p.Healthy(); err != nil {
					t.Errorf("after the outage: %v", err)
				}
				if n := log.count("readable again"); n != len(p.watches) {
					t.Errorf("recovery logged %d times, want once per path", n)
				}
			})
		})
	}
}

func TestOneBrokenPathDoesNotSlowTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		w.answer = func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == rebalancePath {
				return response(http.StatusServiceUnavailable, ""), nil
			}
			return nil, nil
		}
		p, _ := start(t, w, &fakeAccepter{})
		time.Sleep(2 * time.Minute)
		if n := len(w.times(actionPath)); n < 56 {
			t.Errorf("%d polls in 2 minutes, want about 60", n)
		}
		if err := p.Healthy(); err == nil || !strings.Contains(err.Error(), "rebalance") {
			t.Errorf("healthy error %v, want one about the path that was never read", err)
		}
	})
}

func TestHostileValues(t *testing.T) {
	tests := []struct {
		name, body string
		reason     awsfault.Reason
		notices    int
	}{
		{"garbage", "\x00\xff{", reasonMalformed, 0},
		{"too large", strings.Repeat(" ", maxBody) + "{}", reasonTooLarge, 0},
		{"unknown action", `{"action":"melt","time":"2000-01-01T00:02:00Z"}`, reasonUnknownAction, 1},
	}
	const unreadable, unknown = "cannot read instance metadata", "unknown announcement in instance metadata"
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a := newWire(), &fakeAccepter{}
				w.set(actionPath, tt.body)
				p, log := start(t, w, a)
				time.Sleep(time.Minute)
				synctest.Wait()
				// What can be acted on is no fault that goes on.
				if n := value(t, p.source.Errors(tt.reason)); n < 1 || (n == 1) != (tt.notices == 1) {
					t.Errorf("%v errors of reason %s", n, tt.reason)
				}
				if n := log.count(unreadable) + log.count(unknown); n != 1 {
					t.Errorf("logged %d times, want once", n)
				}
				if healthy := p.Healthy() == nil; healthy != (tt.notices == 1) {
					t.Errorf("healthy %t", healthy)
				}
				if n := len(a.notices()); n != tt.notices {
					t.Errorf("%d notices, want %d", n, tt.notices)
				}
				w.set(actionPath, spotBody(time.Now().Add(2*time.Minute)))
				time.Sleep(maxBackoff + callTimeout)
				synctest.Wait()
				if n := len(a.notices()); n != tt.notices+1 {
					t.Errorf("%d notices after a good one, want %d", n, tt.notices+1)
				}
			})
		})
	}
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

// The 12 s of the package comment, and the pause that a slip costs.
func TestTimesAfterAnOutage(t *testing.T) {
	if got := maxBackoff + callTimeout; got != 12*time.Second {
		t.Errorf("a notice is seen up to %s after an outage, want 12s", got)
	}
	if callTimeout != 2*time.Second || dialTimeout+headerTimeout >= callTimeout {
		t.Errorf("a call takes up to %s, of which a token request can hang for %s", callTimeout, dialTimeout+headerTimeout)
	}
}

// An outage that is over has no part in how long the next failed reading waits.
func TestBackoffBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		var broken atomic.Bool
		w.answer = func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == actionPath && broken.Load() {
				return response(http.StatusServiceUnavailable, ""), nil
			}
			return nil, nil
		}
		start(t, w, &fakeAccepter{})
		broken.Store(true)
		time.Sleep(5 * time.Minute)
		broken.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()

		broken.Store(true)
		before := len(w.times(actionPath))
		time.Sleep(4 * time.Second) // in which there is a poll, and another soon afterwards
		synctest.Wait()
		asked := w.times(actionPath)[before:]
		if len(asked) < 2 {
			t.Fatalf("%d polls in 4 s, want a second one soon after the first that failed", len(asked))
		}
		if wait := asked[1].Sub(asked[0]); wait < 375*time.Millisecond || wait > 625*time.Millisecond {
			t.Errorf("tried again after %s, want about 500ms", wait)
		}
	})
}
