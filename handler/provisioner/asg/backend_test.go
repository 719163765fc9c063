package asg

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

const settled = 5 * time.Second // much more than a few calls take in fake time

func TestBurstSharesItsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		sizes := map[string]int{"large": 150, "middle": 30, "small": 20}
		n := 0
		var nodes []*corev1.Node
		for _, group := range []string{"large", "middle", "small"} {
			for range sizes[group] {
				k.put(group, "InService", id(n))
				nodes = append(nodes, k.node(id(n)))
				n++
			}
		}
		time.Sleep(time.Minute)
		for _, node := range nodes {
			k.interrupt(node, nil)
		}
		time.Sleep(settled)
		for i := range n {
			if got := k.answer("node-" + id(i)); got.State != provisioner.StateLaunched || got.Name != got.Pool || got.Backend != "asg" {
				t.Fatalf("node %d: %+v", i, got)
			}
		}
		detached := map[string]bool{}
		for _, c := range k.of(detachInstances) {
			for _, id := range c.ids {
				if detached[id] {
					t.Errorf("%s detached twice", id)
				}
				detached[id] = true
			}
		}
		if len(detached) != n {
			t.Errorf("%d detached, want %d", len(detached), n)
		}
		// The least is 4, 1 and 11; the first of a burst do not wait for the last.
		for action, most := range map[string]int{describeInstances: 7, describeGroups: 3, detachInstances: 16} {
			if got := len(k.of(action)); got > most {
				t.Errorf("%d calls of %s, want at most %d", got, action, most)
			}
		}
		for action, limit := range map[string]int{describeInstances: 50, detachInstances: 20} {
			for _, c := range k.of(action) {
				if len(c.ids) > limit {
					t.Errorf("%s of %d instances", action, len(c.ids))
				}
			}
		}
	})
}

func TestIdleMakesNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.node(id(1))
		time.Sleep(time.Hour)
		if len(k.calls) != 0 {
			t.Errorf("calls %v", k.calls)
		}
	})
}

func TestNothingToAskFor(t *testing.T) {
	b := New(Options{})
	rec := interruption.Record{Kind: interruption.SpotInterruption, Instance: id(1)}
	moving := provisioner.Need{Moving: []*corev1.Pod{{}}}
	for name, c := range map[string]struct {
		instance string
		need     provisioner.Need
		want     string
	}{
		"no pods":      {id(1), provisioner.Need{}, reasonNoMoving},
		"no instance":  {"", moving, reasonNoInstance},
		"another kind": {"kwok-node-1", moving, reasonNoInstance},
	} {
		rec.Instance = c.instance
		got, err := b.Request(t.Context(), &corev1.Node{}, rec, c.need)
		if err != nil || got.State != provisioner.StateUnsupported || got.Reason != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// A group that ends an instance by itself might want no other, and does not let it go. A
// rehearsal detaches none, as there is no way back, whatever its record says.
func TestInstancesThatStayInTheirGroup(t *testing.T) {
	api := newCloud()
	api.put("workers", "Terminating:Wait", id(1))
	b := New(Options{AutoScaling: api})
	moving := provisioner.Need{Moving: []*corev1.Pod{{}}}
	for name, rec := range map[string]interruption.Record{
		"without a notice":    {Kind: interruption.InstanceTerminating, Instance: id(1)},
		"with a spot notice":  {Kind: interruption.SpotInterruption, Instance: id(1), Hooks: []interruption.Hook{{Group: "workers", Name: "drain"}}},
		"of another backend":  {Kind: interruption.InstanceTerminating, Instance: id(1), Replacement: &interruption.Replacement{Backend: provisioner.Placeholder, Name: "p"}},
		"looked up until now": {Kind: interruption.InstanceTerminating, Instance: id(1), Replacement: &interruption.Replacement{Backend: provisioner.ASG, State: provisioner.StateRequested}},
		"rehearsed":           {Kind: interruption.SpotInterruption, Instance: id(1), Source: interruption.Rehearsal},
		"rehearsed, and forged": {Kind: interruption.SpotInterruption, Instance: id(1), Source: interruption.Rehearsal,
			Replacement: &interruption.Replacement{Backend: provisioner.ASG, Name: "workers", Pool: "workers", State: provisioner.StateRequested}},
	} {
		want := reasonEnds
		if rec.Rehearsed() {
			want = reasonRehearsal
		}
		if got, err := b.Request(t.Context(), &corev1.Node{}, rec, moving); err != nil || got.State != provisioner.StateUnsupported || got.Reason != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if n := len(api.calls); n != 0 {
		t.Errorf("%d calls", n)
	}
}

// If nobody is notified, as in a dry run, Request asks for the group itself, and detaches nothing.
func TestRequestThatWaits(t *testing.T) {
	workers := interruption.Replacement{Backend: "asg", Name: "workers", Pool: "workers", State: provisioner.StateRequested}
	for name, tt := range map[string]struct {
		state string
		fail  error
		want  interruption.Replacement
		err   bool
	}{
		"in a group":  {state: "InService", want: workers},
		"in none":     {want: unsupported(reasonNoGroup)},
		"in standby":  {state: "Standby", want: unsupported("the instance is Standby in Auto Scaling group workers")},
		"not allowed": {fail: apiError("AccessDenied"), want: unsupported("not allowed to call autoscaling:DescribeAutoScalingInstances")},
		"no answer":   {fail: apiError("InternalFailure"), err: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud()
			if tt.state != "" {
				c.put("workers", tt.state, id(1))
			}
			if tt.fail != nil {
				c.fail = func(string, []string) error { return tt.fail }
			}
			b := New(Options{AutoScaling: c})
			rec := interruption.Record{Kind: interruption.SpotInterruption, Instance: id(1)}
			got, err := b.Request(t.Context(), &corev1.Node{}, rec, provisioner.Need{Moving: []*corev1.Pod{{}}})
			if got != tt.want || (err != nil) != tt.err {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
			if len(c.calls) != 1 || c.state[id(1)] != tt.state {
				t.Errorf("calls %v", c.calls)
			}
		})
	}
}

// An instance that is only rebooted comes back to its group: it is not detached for that,
// or it would run on outside of any group.
func TestWhatComesBackIsNotDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud()
		c.put("workers", "InService", id(1))
		b := New(Options{AutoScaling: c, Terminate: c.TerminateInstances})
		rec := interruption.NewRecord(interruption.Notice{
			Kind: interruption.ScheduledEvent, Action: interruption.ActionReboot, EventID: "e", InstanceID: id(1), Deadline: time.Now().Add(time.Hour),
		})
		need := provisioner.Need{Moving: []*corev1.Pod{{}}}
		got, err := b.Request(t.Context(), &corev1.Node{}, rec, need)
		if err != nil || got.State != provisioner.StateUnsupported || got.Reason != reasonComesBack {
			t.Errorf("%+v, %v; want it left in its group", got, err)
		}
		if len(c.calls) != 0 {
			t.Errorf("calls %v", c.calls)
		}
	})
}
