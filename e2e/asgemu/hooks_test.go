package asgemu_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"spot-handler/e2e/asgemu"
)

// hookContract is what AWS documents about lifecycle hooks, or is known to answer. The foreign emulator keeps hooks
// and never waits at one, so it is held only to the first case.
var hookContract = []struct {
	name  string
	check func(*testing.T, *service, *asgemu.Server)
}{
	{"a hook is described with its limits", checkDescribeHooks},
	{"a group waits at its hook until that is completed", checkComplete},
	{"a lifecycle action is completed once", checkCompleteOnce},
	{"an instance that nobody waits for", checkNoAction},
	{"an instance that waits cannot be detached", checkNoDetach},
}

func TestHookContract(t *testing.T) {
	t.Run("emulator", func(t *testing.T) {
		t.Parallel()
		s, server := emulated(t)
		for _, c := range hookContract {
			t.Run(c.name, func(t *testing.T) { t.Parallel(); c.check(t, s, server) })
		}
	})
	t.Run("foreign emulator", func(t *testing.T) {
		t.Parallel()
		s := connect(startForeign(t))
		s.prepareForeign(t)
		t.Run(hookContract[0].name, func(t *testing.T) { hookContract[0].check(t, s, nil) })
	})
}

func (s *service) complete(t *testing.T, group, instance string, token *string) error {
	t.Helper()
	_, err := s.groups.CompleteLifecycleAction(t.Context(), &autoscaling.CompleteLifecycleActionInput{
		AutoScalingGroupName: &group, LifecycleHookName: aws.String("drain"), LifecycleActionResult: aws.String("CONTINUE"),
		InstanceId: &instance, LifecycleActionToken: token,
	})
	return err
}

func (s *service) heartbeat(t *testing.T, group, instance string) error {
	t.Helper()
	_, err := s.groups.RecordLifecycleActionHeartbeat(t.Context(), &autoscaling.RecordLifecycleActionHeartbeatInput{
		AutoScalingGroupName: &group, LifecycleHookName: aws.String("drain"), InstanceId: &instance,
	})
	return err
}

// waiting makes a group with a hook that waits for its instance.
func (s *service) waiting(t *testing.T, server *asgemu.Server) (group, instance string) {
	t.Helper()
	group = t.Name()
	instance = s.create(t, group, 1)[0]
	s.hook(t, group, 300)
	server.Shrink(instance)
	if m := s.member(t, instance); m == nil || *m.LifecycleState != "Terminating:Wait" {
		t.Fatalf("got %+v, want it to wait", m)
	}
	return group, instance
}

func checkDescribeHooks(t *testing.T, s *service, _ *asgemu.Server) {
	group := "described-hooks"
	s.create(t, group, 1)
	s.hook(t, group, 7200)
	out, err := s.groups.DescribeLifecycleHooks(t.Context(), &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: &group})
	if err != nil || len(out.LifecycleHooks) != 1 {
		t.Fatalf("got %+v, %v; want one hook", out, err)
	}
	h := out.LifecycleHooks[0]
	if *h.LifecycleHookName != "drain" || *h.AutoScalingGroupName != group || *h.HeartbeatTimeout != 7200 || *h.GlobalTimeout != 172800 || *h.DefaultResult != "ABANDON" {
		t.Errorf("got %s of %s: %d s, %d s in all, else %s", *h.LifecycleHookName, *h.AutoScalingGroupName, *h.HeartbeatTimeout, *h.GlobalTimeout, *h.DefaultResult)
	}
}

func checkComplete(t *testing.T, s *service, server *asgemu.Server) {
	group, instance := s.waiting(t, server)
	if err := s.heartbeat(t, group, instance); err != nil {
		t.Error(err)
	}
	if err := s.complete(t, group, instance, nil); err != nil {
		t.Error(err)
	}
	eventually(t, "the instance leaves the group", func() bool { return s.member(t, instance) == nil })
}

func checkCompleteOnce(t *testing.T, s *service, server *asgemu.Server) {
	group, instance := s.waiting(t, server)
	if err := s.complete(t, group, instance, nil); err != nil {
		t.Error(err)
	}
	for _, err := range []error{s.complete(t, group, instance, nil), s.heartbeat(t, group, instance)} {
		wantCode(t, err, "ValidationError")
		if err == nil || !strings.Contains(err.Error(), "No active Lifecycle Action found with instance ID "+instance) {
			t.Errorf("got %v", err)
		}
	}
}

func checkNoAction(t *testing.T, s *service, _ *asgemu.Server) {
	instance := s.create(t, t.Name(), 1)[0]
	err := s.complete(t, t.Name(), instance, aws.String("a-token"))
	wantCode(t, err, "ValidationError")
	if err == nil || !strings.Contains(err.Error(), "No active Lifecycle Action found with token a-token") {
		t.Errorf("got %v", err)
	}
	wantCode(t, s.complete(t, "no-such-group", instance, nil), "ValidationError")
}

func checkNoDetach(t *testing.T, s *service, server *asgemu.Server) {
	group, instance := s.waiting(t, server)
	wantCode(t, s.detach(t.Context(), group, instance), "ValidationError")
}

// What takes minutes is for the emulator only: a heartbeat makes the group wait for the whole timeout again.
func TestWaitsEnd(t *testing.T) {
	t.Parallel()
	server := asgemu.Start(asgemu.Options{})
	t.Cleanup(server.Close)
	s := connect(server.URL)
	for group, tt := range map[string]struct {
		timeout, lasts time.Duration
		beat           bool
	}{
		"left": {100 * time.Millisecond, 100 * time.Millisecond, false},
		// One heartbeat after the first tenth of a second is enough, and a slow machine has nearly 3 s for it.
		"beaten": {2900 * time.Millisecond, 3 * time.Second, true},
	} {
		instance := asgemu.NewInstanceID()
		server.CreateGroup(group, instance)
		server.PutHook(group, asgemu.Hook{
			Name: "drain", Transition: asgemu.TerminateAt, Timeout: tt.timeout, Global: 3 * time.Second, Default: asgemu.Abandon,
		})
		server.Shrink(instance)
		for tt.beat && s.heartbeat(t, group, instance) == nil {
			<-time.After(50 * time.Millisecond)
		}
		eventually(t, "the instance ends", func() bool { i, _ := server.Instance(instance); return i.State == asgemu.Terminated })
		w := server.Waits(instance)[0]
		if lasted := w.Until.Sub(w.Since); !w.TimedOut || w.Result != asgemu.Abandon || lasted != tt.lasts || tt.beat != (w.Heartbeats > 0) {
			t.Errorf("%s: lasted %s, want %s: %+v", group, lasted, tt.lasts, w)
		}
	}
}

// A launched instance waits too, and its group does not launch another meanwhile.
func TestLaunchesWait(t *testing.T) {
	t.Parallel()
	waits := make(chan asgemu.Wait, 10)
	server := asgemu.Start(asgemu.Options{Waiting: func(w asgemu.Wait) { waits <- w }})
	t.Cleanup(server.Close)
	s := connect(server.URL)
	server.CreateGroup("spot", asgemu.NewInstanceID())
	server.PutHook("spot", asgemu.Hook{Name: "drain", Transition: asgemu.Launching, Timeout: time.Hour, Default: asgemu.Abandon})
	server.SetDesired("spot", 2)
	w := <-waits
	if i, _ := server.Instance(w.Instance); i.Lifecycle != asgemu.PendingWait || w.Transition != asgemu.Launching || w.Token == "" {
		t.Fatalf("instance %s, wait %+v", i, w)
	}
	if err := s.complete(t, "spot", w.Instance, &w.Token); err != nil {
		t.Fatal(err)
	}
	if i, _ := server.Instance(w.Instance); i.Lifecycle != asgemu.InService || server.Launched("spot") != 1 {
		t.Errorf("instance %s, %d launched", i, server.Launched("spot"))
	}
}
