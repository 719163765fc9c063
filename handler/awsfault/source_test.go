package awsfault

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestHealthyExpiresAndStartIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSource(nil, "imds", "poll", nil)
		if s.Healthy() == nil {
			t.Error("healthy before the first poll")
		}
		s.Failed(errors.New("no route"))
		if err := s.Healthy(); err == nil || !strings.Contains(err.Error(), "not yet done: no route") {
			t.Errorf("error %v before the first poll, want the fault", err)
		}
		time.Sleep(time.Second)
		s.Read(time.Now())
		time.Sleep(time.Minute)
		if err := s.Healthy(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if err := s.Healthy(); err == nil || strings.Contains(err.Error(), "no route") || !strings.Contains(err.Error(), "last done at 2000-01-01T00:00:01Z") {
			t.Errorf("error %v more than a minute after the last poll, want one without the fault that is over", err)
		}
	})
}
