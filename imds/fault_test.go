package imds

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/handler/awsfault"
)

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
		if n := value(t, p.source.Errors(reasonUnauthorized)); n != 1 {
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
				if n := value(t, p.source.Errors(tt.reason)); n < 2 {
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
