package imds

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/e2e/imdsemu"
	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

// startReal polls the emulator with the SDK over a socket, as fast as it goes.
func startReal(t *testing.T, s *imdsemu.Server, a interruption.Accepter) *Poller {
	t.Helper()
	t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
	p := New(Options{
		Client: NewClient(aws.Config{}), Accepter: a, NodeName: "node-1",
		Kinds: everything, Interval: time.Millisecond, Registerer: prometheus.NewRegistry(), Logger: zerolog.Nop(),
	})
	run(t, p)
	return p
}

func emulator(t *testing.T) *imdsemu.Server {
	t.Helper()
	s := imdsemu.Start(imdsemu.Options{InstanceID: testInstance})
	t.Cleanup(s.Close)
	return s
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(20 * time.Second); !is(); {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("no %s within 20 s", what)
		}
	}
}

func TestTwentyPollsKeepTheirConnection(t *testing.T) {
	s := emulator(t)
	p := startReal(t, s, &fakeAccepter{})
	for _, path := range []string{
		imdsemu.InstanceActionPath, imdsemu.RebalancePath, imdsemu.TargetLifecycleStatePath, // 404
		imdsemu.ScheduledEventsPath, imdsemu.EventHistoryPath, // empty lists
	} {
		waitFor(t, "20 polls of "+path, func() bool { return s.Requests(path) >= 20 })
	}
	// A slow machine may cost another of either; what one of the paths costs at every poll are twenty.
	if n := s.Connections(); n >= 20/4 {
		t.Errorf("%d connections, want one or hardly more", n)
	}
	if n := s.Requests(imdsemu.TokenPath); n >= 20/4 {
		t.Errorf("%d tokens, want one or hardly more", n)
	}
	waitFor(t, "health", func() bool { return p.Healthy() == nil })
}

func TestNoticeOverTheWire(t *testing.T) {
	s, a := emulator(t), &fakeAccepter{}
	startReal(t, s, a)
	at := time.Now().Add(2 * time.Minute).Truncate(time.Second).UTC()
	s.Interrupt("terminate", at)
	s.Rebalance(time.Now())
	waitFor(t, "both notices", func() bool { return len(a.notices()) == 2 })
	polls := s.Requests(imdsemu.RebalancePath)
	waitFor(t, "further polls", func() bool { return s.Requests(imdsemu.RebalancePath) > polls+10 })
	if got := a.notices(); len(got) != 2 {
		t.Errorf("submitted again: %v", got)
	}
	for _, n := range a.notices() {
		if n.Kind == interruption.SpotInterruption && !n.Deadline.Equal(at) {
			t.Errorf("deadline %v, want %v", n.Deadline, at)
		}
	}

	// A new process reads the same again, under the same ids.
	again := &fakeAccepter{}
	startReal(t, s, again)
	waitFor(t, "both notices again", func() bool { return len(again.notices()) == 2 })
	ids := map[string]bool{}
	for _, n := range append(a.notices(), again.notices()...) {
		ids[n.EventID] = true
	}
	if len(ids) != 2 {
		t.Errorf("event ids %v, want the same two", ids)
	}
}

// Three polls of a state that stays are one interruption.
func TestLifecycleStateOverTheWire(t *testing.T) {
	s, a := emulator(t), &fakeAccepter{}
	s.SetTargetLifecycleState("InService")
	startReal(t, s, a)
	waitFor(t, "3 polls in service", func() bool { return s.Requests(imdsemu.TargetLifecycleStatePath) >= 3 })
	s.SetTargetLifecycleState("Terminated")
	waitFor(t, "notice", func() bool { return len(a.notices()) > 0 }) // delivery is not the poller's own goroutine
	polls := s.Requests(imdsemu.TargetLifecycleStatePath)
	waitFor(t, "3 polls", func() bool { return s.Requests(imdsemu.TargetLifecycleStatePath) >= polls+4 })
	if got := a.notices(); len(got) != 1 || got[0].Kind != interruption.InstanceTerminating {
		t.Errorf("submitted %v, want it once", got)
	}
}

func TestScheduledEventsOverTheWire(t *testing.T) {
	s, a := emulator(t), &fakeAccepter{}
	startReal(t, s, a)
	at := time.Now().Add(2 * time.Hour).Truncate(time.Second).UTC()
	s.Schedule(
		imdsemu.ScheduledEvent{Code: "system-reboot", EventID: "instance-event-1", NotBefore: at, NotAfter: at.Add(time.Hour), State: "active"},
		imdsemu.ScheduledEvent{Code: "instance-retirement", EventID: "instance-event-2", NotBefore: at.Add(time.Hour), State: "active"},
	)
	waitFor(t, "both events", func() bool { return len(a.notices()) == 2 })
	s.Cancel("instance-event-1")
	waitFor(t, "withdrawal", func() bool { return len(a.notices()) == 3 })
	polls := s.Requests(imdsemu.EventHistoryPath)
	waitFor(t, "further polls", func() bool { return s.Requests(imdsemu.EventHistoryPath) > polls+10 })
	got := a.notices()
	if len(got) != 3 || !got[2].Withdrawn || got[2].EventID != got[0].EventID || !got[0].Deadline.Equal(at) ||
		got[0].Action != interruption.ActionReboot || got[1].Action != interruption.ActionRetirement {
		t.Errorf("submitted %+v, want both events, and the first one's withdrawal", got)
	}
}

func TestExpiredTokensAreReplaced(t *testing.T) {
	s, a := emulator(t), &fakeAccepter{}
	p := startReal(t, s, a)
	waitFor(t, "health", func() bool { return p.Healthy() == nil })
	const times = 20
	for range times {
		tokens := s.Requests(imdsemu.TokenPath)
		s.ExpireTokens()
		waitFor(t, "new token", func() bool { return s.Requests(imdsemu.TokenPath) > tokens })
		// The second request from here on means that the first, with the new token, has its answer.
		polls := s.Requests(imdsemu.InstanceActionPath)
		waitFor(t, "polls with it", func() bool { return s.Requests(imdsemu.InstanceActionPath) >= polls+2 })
	}
	s.ExpireTokens()
	s.Interrupt("stop", time.Now().Add(2*time.Minute))
	waitFor(t, "notice", func() bool { return len(a.notices()) == 1 })
	// A slow machine may cost another of either, but not one each time.
	if n := s.Requests(imdsemu.TokenPath); n > times+2+times/4 {
		t.Errorf("%d tokens, want %d or hardly more", n, times+2)
	}
	if n := s.Connections(); n >= times/4 {
		t.Errorf("%d connections, want one or hardly more", n)
	}
}

func TestFaultsOverTheWire(t *testing.T) {
	tests := []struct {
		name   string
		fault  imdsemu.Fault
		reason awsfault.Reason
	}{
		{"unauthorized", imdsemu.Fault{Effect: imdsemu.Unauthorized, Times: 2, Action: imdsemu.MetadataPath}, reasonUnauthorized},
		{"throttled", imdsemu.Fault{Effect: imdsemu.Throttled, Times: 2, Action: imdsemu.MetadataPath}, awsfault.Throttled},
		{"unavailable", imdsemu.Fault{Effect: imdsemu.Unavailable, Times: 2}, awsfault.Unavailable},
		{"reset", imdsemu.Fault{Effect: imdsemu.Reset, Times: 2}, awsfault.Connection},
		{"hang", imdsemu.Fault{Delay: imdsemu.Unanswered, Times: 1, Action: imdsemu.InstanceActionPath}, awsfault.Timeout},
		{"hop limit", imdsemu.Fault{Delay: imdsemu.Unanswered, Times: 1, Action: imdsemu.TokenPath}, reasonTokenTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, a := emulator(t), &fakeAccepter{}
			s.Fail(tt.fault)
			s.Interrupt("terminate", time.Now().Add(2*time.Minute))
			p := startReal(t, s, a)
			waitFor(t, "notice", func() bool { return len(a.notices()) == 1 })
			if n := value(t, p.source.Errors(tt.reason)); n < 1 {
				t.Errorf("no error of reason %s counted", tt.reason)
			}
		})
	}
}

func TestHopLimitIsSaidToBeTheLikelyCause(t *testing.T) {
	s := emulator(t)
	s.Fail(imdsemu.Fault{Delay: imdsemu.Unanswered, Action: imdsemu.TokenPath})
	p := startReal(t, s, &fakeAccepter{})
	waitFor(t, "error", func() bool { return strings.Contains(p.Healthy().Error(), "hop limit of 2") })
}

func TestNoService(t *testing.T) {
	s := imdsemu.Start(imdsemu.Options{})
	s.Close()
	p := startReal(t, s, &fakeAccepter{})
	waitFor(t, "error", func() bool { return value(t, p.source.Errors(awsfault.Connection)) > 0 })
}
