package asg

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/handler/provisioner"
)

// What an instance is in its group decides what is answered, and that it is detached.
func TestLifecycleStates(t *testing.T) {
	for state, want := range map[string]struct {
		answer  string
		detach  bool
		because string
	}{
		"InService":           {answer: provisioner.StateLaunched, detach: true},
		"Detaching":           {answer: provisioner.StateLaunched},
		"Detached":            {answer: provisioner.StateLaunched},
		"Terminating":         {answer: provisioner.StateLaunched},
		"Terminating:Wait":    {answer: provisioner.StateLaunched},
		"Terminating:Proceed": {answer: provisioner.StateLaunched},
		"Terminated":          {answer: provisioner.StateLaunched},
		"Standby":             {answer: provisioner.StateUnsupported, because: "the instance is Standby in Auto Scaling group workers"},
		"EnteringStandby":     {answer: provisioner.StateUnsupported, because: "EnteringStandby"},
		"Pending:Wait":        {answer: provisioner.StateUnsupported, because: "Pending:Wait"},
		"Warmed:Stopped":      {answer: provisioner.StateUnsupported, because: "Warmed:Stopped"},
		"":                    {answer: provisioner.StateUnsupported, because: reasonNoGroup},
	} {
		t.Run(state, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				if state != "" {
					k.put("workers", state, id(1))
				}
				k.interrupt(k.node(id(1)), nil)
				time.Sleep(settled)
				got := k.answer("node-" + id(1))
				if got.State != want.answer || !strings.Contains(got.Reason, want.because) {
					t.Errorf("got %+v, want %+v", got, want)
				}
				if n := len(k.of(detachInstances)); (n == 1) != want.detach || n > 1 {
					t.Errorf("%d calls to detach", n)
				}
			})
		})
	}
}
