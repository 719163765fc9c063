package imds

import (
	"testing"
	"testing/synctest"
	"time"
)

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
