package awsfault

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestFlappingIsLoggedOncePerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Reporter
		logged := 0
		for range 600 {
			if r.Changed(Unavailable) {
				logged++
			}
			r.Recovered()
			time.Sleep(time.Second)
		}
		if logged != 10 {
			t.Errorf("logged %d times in ten minutes", logged)
		}
	})
}

// The end of a fault that was news is news, once; that of one that was none is not. The next fault of the same reason,
// soon after, is no news, and what has lasted on is none either.
func TestNewsAndItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Reporter
		step := func(what string, got, want bool) {
			t.Helper()
			if got != want {
				t.Errorf("%s: news %t, want %t", what, got, want)
			}
		}
		step("nothing has failed", r.Recovered(), false)
		step("the first fault", r.Changed(Throttled), true)
		step("the same", r.Changed(Throttled), false)
		step("its end", r.Recovered(), true)
		step("its end again", r.Recovered(), false)
		step("the same fault soon after", r.Changed(Throttled), false)
		step("the end of that", r.Recovered(), false)
		time.Sleep(time.Minute)
		step("the same fault a minute later", r.Changed(Throttled), true)
		time.Sleep(time.Hour)
		step("the same, which has lasted", r.Changed(Throttled), false)
		step("another", r.Changed(Unavailable), true)
	})
}

// Pauses double up to the longest.
func TestPauses(t *testing.T) {
	p := Pauses(time.Second, 5*time.Second, 0)
	p.Reset()
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
		if got := p.NextBackOff(); got != want {
			t.Errorf("pause %d: %s, want %s", i, got, want)
		}
	}
}
