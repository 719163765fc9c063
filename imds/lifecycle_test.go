package imds

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"spot-handler/handler/interruption"
)

func TestParseLifecycleState(t *testing.T) {
	for state, terminating := range map[string]bool{
		string(testdata(t, "lifecycle_terminated.txt")): true,
		"Terminated\n": true,
		string(testdata(t, "lifecycle_in_service.txt")):        false,
		string(testdata(t, "lifecycle_warmed_terminated.txt")): false,
		"Warmed:Stopped":             false,
		"Detached":                   false,
		"Standby":                    false,
		"Terminating":                false,
		"terminated, or so they say": false,
		"":                           false,
		string(testdata(t, "malformed_html.txt")): false,
	} {
		want := announcement{}
		if terminating {
			want = announcement{name: "Terminated", notice: interruption.Notice{
				Action: interruption.ActionTerminate, Noticed: newYear, Received: newYear,
			}}
		}
		got, err := parseLifecycleState([]byte(state), newYear)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(announcement{})); diff != "" || err != nil {
			t.Errorf("%q: %v %s", state, err, diff)
		}
	}
}

// A lifecycle state that was Terminated and is something else says nothing.
func TestLifecycleStateThatGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, a := newWire(), &fakeAccepter{}
		start(t, w, a)
		for _, state := range []string{"InService", "Terminated", "InService", "Warmed:Running", "Terminated"} {
			w.set(lifecyclePath, state)
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		got := a.notices()
		if len(got) != 1 || got[0].Withdrawn || got[0].Action != interruption.ActionTerminate || !got[0].Deadline.IsZero() {
			t.Errorf("submitted %+v, want it once, without a deadline", got)
		}
	})
}
