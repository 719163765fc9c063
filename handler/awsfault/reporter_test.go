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
