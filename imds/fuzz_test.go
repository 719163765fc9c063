package imds

import (
	"os"
	"testing"
	"time"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

// The metadata service is trusted as far as the link to it: whatever comes, no parser
// panics, and what it returns is what the accepter may rely on.
func fuzz(f *testing.F, parse func() func(reading) ([]announcement, error), check func(t *testing.T, n interruption.Notice)) {
	samples, err := os.ReadDir("testdata")
	if err != nil {
		f.Fatal(err)
	}
	for _, sample := range samples {
		if !sample.IsDir() {
			f.Add(testdata(f, sample.Name()))
		}
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		said, err := parse()(reading{body, true, newYear})
		if err != nil && (awsfault.Of(err) == awsfault.Other || len(err.Error()) > 4096) {
			t.Errorf("error without a reason, or of %d bytes: %.512q", len(err.Error()), err)
		}
		for _, a := range said {
			n := a.notice
			if !validName(a.name) && a.name != n.Deadline.Format(time.RFC3339) && a.name != n.Noticed.Format(time.RFC3339) && n.Action != interruption.ActionHibernate {
				t.Errorf("named %q", a.name)
			}
			if n.Received != newYear || n.Noticed.After(n.Received) || n.Noticed.IsZero() {
				t.Errorf("noticed %v, received %v", n.Noticed, n.Received)
			}
			if !n.Deadline.IsZero() && n.Deadline.Sub(newYear).Abs() > maxEventAway {
				t.Errorf("deadline %v", n.Deadline)
			}
			check(t, n)
		}
		if len(said) > maxEvents {
			t.Errorf("%d announcements", len(said))
		}
	})
}

func parser(parse func([]byte, time.Time) (announcement, error)) func() func(reading) ([]announcement, error) {
	return func() func(reading) ([]announcement, error) { return one(parse) }
}

func FuzzInstanceAction(f *testing.F) {
	fuzz(f, parser(parseInstanceAction), func(t *testing.T, n interruption.Notice) {
		switch n.Action {
		case interruption.ActionTerminate, interruption.ActionStop, interruption.ActionHibernate:
		default:
			t.Errorf("action %q", n.Action)
		}
		if n.Deadline.IsZero() || n.Withdrawn {
			t.Errorf("got %+v", n)
		}
	})
}

func FuzzRebalance(f *testing.F) {
	fuzz(f, parser(parseRebalance), func(t *testing.T, n interruption.Notice) {
		if !n.Deadline.IsZero() || n.Action != "" || n.Withdrawn {
			t.Errorf("got %+v", n)
		}
	})
}

func FuzzLifecycleState(f *testing.F) {
	fuzz(f, parser(parseLifecycleState), func(t *testing.T, n interruption.Notice) {
		if !n.Deadline.IsZero() || n.Action != interruption.ActionTerminate || n.Withdrawn {
			t.Errorf("got %+v", n)
		}
	})
}

func FuzzScheduledEvents(f *testing.F) {
	check := func(t *testing.T, n interruption.Notice) {
		switch n.Action {
		case interruption.ActionStop, interruption.ActionRetirement, interruption.ActionReboot, interruption.ActionMaintenance:
		default:
			t.Errorf("action %q", n.Action)
		}
		if n.Deadline.IsZero() && !n.Withdrawn {
			t.Error("announced without a deadline")
		}
	}
	fuzz(f, func() func(reading) ([]announcement, error) { return newFollower().scheduled }, check)
}

func FuzzEventHistory(f *testing.F) {
	fuzz(f, func() func(reading) ([]announcement, error) {
		s := newFollower()
		_, _ = s.scheduled(reading{at: newYear}) // there is none
		return s.history
	}, func(t *testing.T, n interruption.Notice) {
		if !n.Withdrawn {
			t.Errorf("announced by the history: %+v", n)
		}
	})
}
