package main

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRequestsGiveWayToALateRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way := &rightOfWay{}
		transport := giveWay{next: roundTrip(func(*http.Request) (*http.Response, error) { return &http.Response{}, nil }), way: way}
		took := func(ctx context.Context) time.Duration {
			t.Helper()
			start := time.Now()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api/", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := transport.RoundTrip(r); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		if d := took(t.Context()); d != 0 {
			t.Errorf("a process without a lease waits %s", d)
		}
		way.set(time.Now())
		time.Sleep(lateAfter)
		if d := took(t.Context()); d != 0 {
			t.Errorf("waits %s while the renewal is in time", d)
		}
		time.Sleep(time.Millisecond)
		if d := took(t.Context()); d != giveWayFor {
			t.Errorf("waits %s for a renewal that does not come, want %s", d, giveWayFor)
		}
		time.AfterFunc(300*time.Millisecond, func() { way.set(time.Now()) })
		if d := took(t.Context()); d < 300*time.Millisecond || d > 300*time.Millisecond+giveWayCheck {
			t.Errorf("goes on %s after the start, want just after the renewal at 300ms", d)
		}
		time.Sleep(lateAfter + time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if d := took(ctx); d != 100*time.Millisecond {
			t.Errorf("waits %s, longer than its context", d)
		}
		way.set(time.Time{})
		if d := took(t.Context()); d != 0 {
			t.Errorf("waits %s when there is no lease any more", d)
		}
	})
}
