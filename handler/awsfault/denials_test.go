package awsfault

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestDenials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d Denials
		for i, step := range []struct {
			code string // "" for success
			want string
			news bool
		}{
			{"AccessDenied", "not allowed to call ec2:TerminateInstances", true},
			{"Throttling", "", false},
			{"AccessDenied", "not allowed to call ec2:TerminateInstances", false},
			{"ExpiredToken", "no valid AWS credentials to call ec2:TerminateInstances", false},
			{"", "", false},
			{"AccessDenied", "not allowed to call ec2:TerminateInstances", true},
			{"ValidationError", "", false}, // by somebody who would have done it
			{"AccessDenied", "not allowed to call ec2:TerminateInstances", true},
		} {
			var err error
			if step.code != "" {
				err = Classify("ec2", "TerminateInstances", apiError(step.code))
			}
			if reason, news := d.Note("a", err); reason != step.want || news != step.news {
				t.Errorf("step %d: %q, %v", i, reason, news)
			}
		}
		if reason, _ := Hopeless(d.Standing("a", time.Minute)); reason == "" || d.Standing("b", time.Minute) != nil {
			t.Error("what stands is not what was noted")
		}
		time.Sleep(time.Minute)
		if err := d.Standing("a", time.Minute); err != nil {
			t.Errorf("%v still stands after a minute", err)
		}
		d = Denials{}
		for i := range maxDenials {
			d.Note(fmt.Sprint(i), Classify("ec2", "TerminateInstances", apiError("AccessDenied")))
		}
		if n := len(d.seen); n != maxDenials {
			t.Errorf("%d are remembered, want %d", n, maxDenials)
		}
		d.Note("one more", Classify("ec2", "TerminateInstances", apiError("AccessDenied")))
		if n := len(d.seen); n != 1 {
			t.Errorf("%d are remembered beyond the bound, want the last alone", n)
		}
	})
}
