package imds

import (
	"context"
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

func spotBody(at time.Time) string {
	return `{"action":"terminate","time":"` + at.UTC().Format(time.RFC3339) + `"}`
}

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

func TestNewerNoticeTakesThePlaceOfOneThatWaits(t *testing.T) {
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
				if n := value(t, p.metrics.errors(want)); n < 50 {
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

// The SDK forgets its token on a 401, but asks for a new one only on the next call.
func TestUnauthorizedTakesANewTokenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		var refuse atomic.Bool
		w.answer = func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == actionPath && refuse.CompareAndSwap(true, false) {
				return response(http.StatusUnauthorized, ""), nil
			}
			return nil, nil
		}
		p, log := start(t, w, a)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		tokens, polls := len(w.times(tokenPath)), len(w.times(actionPath))
		if tokens != 1 {
			t.Errorf("%d tokens fetched, want one", tokens)
		}
		refuse.Store(true)
		time.Sleep(2200 * time.Millisecond)
		synctest.Wait()
		asked := w.times(actionPath)
		if n := len(w.times(tokenPath)); n != 2 {
			t.Errorf("%d tokens fetched, want a second one", n)
		}
		if len(asked) < polls+2 || !asked[polls].Equal(asked[polls+1]) {
			t.Errorf("path not read again at once: %v", asked[polls:])
		}
		if n := value(t, p.metrics.errors(reasonUnauthorized)); n != 1 {
			t.Errorf("%v errors counted, want 1", n)
		}
		if n := log.count("cannot read"); n != 0 {
			t.Errorf("logged %d times: nothing was lost", n)
		}
	})
}

func TestTokenFaults(t *testing.T) {
	tests := []struct {
		name   string
		answer func(r *http.Request) (*http.Response, error)
		reason awsfault.Reason
		text   string
	}{
		{"hang", hang, reasonTokenTimeout, "hostNetwork, or the instance a metadata response hop limit of 2"},
		{"503", func(*http.Request) (*http.Response, error) { return response(503, ""), nil }, awsfault.Unavailable, "fetch token"},
		{"404", func(*http.Request) (*http.Response, error) { return response(404, ""), nil }, reasonToken, "fetch token"},
		{"401", func(*http.Request) (*http.Response, error) { return response(401, ""), nil }, reasonToken, "fetch token"},
		{"403", func(*http.Request) (*http.Response, error) { return response(403, ""), nil }, reasonForbidden, "fetch token"},
		{"refused", func(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }, awsfault.Connection, "fetch token"},
		{"no TTL", func(*http.Request) (*http.Response, error) {
			r := response(200, "token")
			r.Header = http.Header{}
			return r, nil
		}, reasonToken, "fetch token"},
		{"endless", func(*http.Request) (*http.Response, error) {
			return response(200, strings.Repeat("x", maxBody+1)), nil
		}, reasonTooLarge, "fetch token"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, a := newWire(), &fakeAccepter{}
				var broken atomic.Bool
				broken.Store(true)
				w.answer = func(r *http.Request) (*http.Response, error) {
					if broken.Load() && r.URL.Path == tokenPath {
						return tt.answer(r)
					}
					return nil, nil
				}
				w.set(actionPath, spotBody(time.Now().Add(2*time.Minute)))
				p, log := start(t, w, a)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if n := value(t, p.metrics.errors(tt.reason)); n < 2 {
					t.Errorf("%v errors of reason %s", n, tt.reason)
				}
				if err := p.Healthy(); err == nil || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("healthy error %v, want %q", err, tt.text)
				}
				if n := log.count("cannot read"); n != 1 {
					t.Errorf("logged %d times, want once", n)
				}
				if n := len(w.times(idPath)); n != 0 {
					t.Error("read without a token")
				}
				broken.Store(false)
				time.Sleep(maxBackoff + callTimeout)
				synctest.Wait()
				if len(a.notices()) != 1 {
					t.Error("notice not seen after the fault")
				}
			})
		})
	}
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
				if n := value(t, p.metrics.errors(tt.reason)); n < 1 || (n == 1) != (tt.notices == 1) {
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

func TestHealthyExpiresAndStartIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{})
		if p.Healthy() == nil {
			t.Error("healthy before the first poll")
		}
		p.health.succeeded(time.Now())
		time.Sleep(time.Minute)
		if err := p.Healthy(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if p.Healthy() == nil {
			t.Error("healthy more than a minute after the last poll")
		}
	})
}
