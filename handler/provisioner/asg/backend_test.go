package asg

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

func TestNothingIsDetachedBeforeTheRecordSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.writes = false
		k.put("workers", "InService", id(1))
		n := k.node(id(1))
		k.interrupt(n, nil)
		for range 20 {
			time.Sleep(settled)
			k.ask(n.Name)
		}
		if got := k.answer(n.Name); got.State != provisioner.StateRequested || got.Name != "workers" || got.Pool != "workers" {
			t.Errorf("got %+v", got)
		}
		if n := len(k.of(detachInstances)); n != 0 {
			t.Errorf("%d calls to detach", n)
		}
		k.writes = true
		k.answers = map[string]interruption.Replacement{}
		k.ask(n.Name)
		time.Sleep(settled)
		if got := k.answer(n.Name); got.State != provisioner.StateLaunched {
			t.Errorf("got %+v", got)
		}
	})
}

// A process that knows nothing but the record and the group goes on, from wherever its
// predecessor was killed.
func TestGoesOnFromTheRecord(t *testing.T) {
	requested := &interruption.Replacement{Backend: "asg", Name: "workers", Pool: "workers", State: provisioner.StateRequested}
	launched := &interruption.Replacement{Backend: "asg", Name: "workers", Pool: "workers", State: provisioner.StateLaunched}
	for name, c := range map[string]struct {
		rec    *interruption.Replacement
		state  string
		detach int
		want   string
	}{
		"before the lookup":              {nil, "InService", 1, provisioner.StateLaunched},
		"before the record":              {&interruption.Replacement{Backend: "asg", State: provisioner.StateRequested}, "InService", 1, provisioner.StateLaunched},
		"before the detach":              {requested, "InService", 1, provisioner.StateLaunched},
		"detached a moment ago":          {requested, "Detaching", 0, provisioner.StateLaunched},
		"detached":                       {requested, "", 0, provisioner.StateLaunched},
		"detached, and recorded so":      {launched, "", 0, provisioner.StateLaunched},
		"not by us, and never looked up": {nil, "", 0, provisioner.StateUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				if c.state != "" {
					k.put("workers", c.state, id(1))
				}
				n := k.node(id(1))
				k.interrupt(n, func(r *interruption.Record) { r.Replacement = c.rec })
				time.Sleep(settled)
				if got := k.answer(n.Name); got.State != c.want {
					t.Errorf("got %+v, want %s", got, c.want)
				}
				if n := len(k.of(detachInstances)); n != c.detach {
					t.Errorf("%d calls to detach, want %d", n, c.detach)
				}
			})
		})
	}
}

func TestThrottlingIsWaitedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		left := map[string]int{describeInstances: 4, detachInstances: 4}
		k.fail = func(action string, _ []string) error {
			if left[action]--; left[action] >= 0 {
				return apiError("Throttling")
			}
			return nil
		}
		for i := range 30 {
			k.put("workers", "InService", id(i))
			k.interrupt(k.node(id(i)), nil)
		}
		time.Sleep(time.Minute)
		for i := range 30 {
			if got := k.answer("node-" + id(i)); got.State != provisioner.StateLaunched {
				t.Fatalf("got %+v", got)
			}
		}
		calls := k.of(detachInstances)
		if len(calls) != 4+2 {
			t.Errorf("%d calls to detach, want 4 in vain and 2", len(calls))
		}
		if first, last := calls[1].at.Sub(calls[0].at), calls[4].at.Sub(calls[3].at); last <= first {
			t.Errorf("no backoff: %s, then %s", first, last)
		}
		if n := len(k.of(describeInstances)); n > 5+2 {
			t.Errorf("%d calls to describe", n)
		}
	})
}

func TestMissingPermissionIsReportedOnce(t *testing.T) {
	for _, action := range []string{describeInstances, detachInstances} {
		t.Run(action, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				allowed := false
				k.fail = func(a string, _ []string) error {
					if a == action && !allowed {
						return apiError("AccessDenied")
					}
					return nil
				}
				for i := range 60 {
					k.put("workers", "InService", id(i))
					k.interrupt(k.node(id(i)), nil)
				}
				time.Sleep(settled)
				for i := range 60 {
					got := k.answer("node-" + id(i))
					if got.State != provisioner.StateUnsupported || got.Reason != "not allowed to call autoscaling:"+action {
						t.Fatalf("got %+v", got)
					}
				}
				if n := len(k.of(action)); n != 1 {
					t.Errorf("%d calls, want 1", n)
				}
				for i := range 3 { // later nodes
					time.Sleep(2 * time.Minute)
					k.put("workers", "InService", id(100+i))
					k.interrupt(k.node(id(100+i)), nil)
				}
				time.Sleep(settled)
				if n := strings.Count(k.log.String(), "no replacement through"); n != 1 {
					t.Errorf("reported %d times: %s", n, k.log)
				}
				k.mu.Lock()
				allowed = true
				k.mu.Unlock()
				time.Sleep(2 * time.Minute)
				k.put("workers", "InService", id(200))
				k.interrupt(k.node(id(200)), nil)
				time.Sleep(settled)
				if got := k.answer("node-" + id(200)); got.State != provisioner.StateLaunched {
					t.Errorf("once it is allowed: %+v", got)
				}
			})
		})
	}
}

// The survey of a group is a help: without its permission nodes are replaced all the same.
func TestGroupsNeedNotBeDescribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.fail = func(a string, _ []string) error {
			if a == describeGroups {
				return apiError("AccessDenied")
			}
			return nil
		}
		k.put("workers", "InService", id(1))
		k.interrupt(k.node(id(1)), nil)
		time.Sleep(settled)
		if got := k.answer("node-" + id(1)); got.State != provisioner.StateLaunched {
			t.Errorf("got %+v", got)
		}
	})
}

func TestOneBadInstanceDoesNotHoldUpTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		bad := id(7)
		k.fail = func(a string, ids []string) error {
			if a == detachInstances && slices.Contains(ids, bad) {
				return apiError("ValidationError")
			}
			return nil
		}
		for i := range 20 {
			k.put("workers", "InService", id(i))
			k.interrupt(k.node(id(i)), nil)
		}
		time.Sleep(settled)
		for i := range 20 {
			want := provisioner.StateLaunched
			if id(i) == bad {
				want = provisioner.StateFailed
			}
			if got := k.answer("node-" + id(i)); got.State != want || got.Name == "" {
				t.Errorf("node %d: %+v, want %s", i, got, want)
			}
		}
		if got := k.answer("node-" + bad).Reason; got != "the service says ValidationError" {
			t.Errorf("reason %q", got)
		}
		if n := len(k.of(detachInstances)); n > 11 {
			t.Errorf("%d calls to find one of 20", n)
		}
	})
}

func TestGroupThatRefusesAllIsNotAskedForEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.fail = func(a string, _ []string) error {
			if a == detachInstances {
				return apiError("ValidationError")
			}
			return nil
		}
		for i := range 100 {
			k.put("workers", "InService", id(i))
			k.interrupt(k.node(id(i)), nil)
		}
		time.Sleep(settled)
		for i := range 100 {
			if got := k.answer("node-" + id(i)); got.State != provisioner.StateFailed {
				t.Fatalf("got %+v", got)
			}
		}
		if n := len(k.of(detachInstances)); n > 50 {
			t.Errorf("%d calls for 100 nodes", n)
		}
	})
}

// An instance that left its group between the lookup and the detach spoils the call
// once, and has its replacement.
func TestInstanceThatLeftMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		once := true
		k.fail = func(a string, _ []string) error {
			if a == detachInstances && once {
				once = false
				k.state[id(3)] = "Terminating:Wait"
			}
			return nil
		}
		for i := range 10 {
			k.put("workers", "InService", id(i))
			k.interrupt(k.node(id(i)), nil)
		}
		time.Sleep(settled)
		for i := range 10 {
			if got := k.answer("node-" + id(i)); got.State != provisioner.StateLaunched {
				t.Errorf("node %d: %+v", i, got)
			}
		}
		if n := len(k.of(detachInstances)); n != 2 {
			t.Errorf("%d calls to detach, want 2", n)
		}
	})
}

// The call was carried out and its answer lost: that is found out, and not asked again.
func TestLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		once := true
		k.loseReply = true
		k.fail = func(a string, _ []string) error {
			if a == detachInstances && once {
				once = false
				return errors.New("connection reset")
			}
			return nil
		}
		k.put("workers", "InService", id(1))
		k.interrupt(k.node(id(1)), nil)
		time.Sleep(settled)
		if got := k.answer("node-" + id(1)); got.State != provisioner.StateLaunched {
			t.Errorf("got %+v", got)
		}
		if n := len(k.of(detachInstances)); n != 1 {
			t.Errorf("%d calls to detach", n)
		}
	})
}

func TestGroupThatLaunchesNothingIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.suspended["workers"] = true
		k.put("workers", "InService", id(1))
		k.interrupt(k.node(id(1)), nil)
		time.Sleep(settled)
		if got := k.answer("node-" + id(1)); got.State != provisioner.StateUnsupported || !strings.Contains(got.Reason, "Launch is suspended") {
			t.Errorf("got %+v", got)
		}
		if n := len(k.of(detachInstances)); n != 0 {
			t.Errorf("%d calls to detach", n)
		}
	})
}

// Nodes do not wait for a service that is away: they go on without a replacement, and
// have one when it is back.
func TestServiceAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		away := true
		k.fail = func(string, []string) error {
			if away {
				return errors.New("connection refused")
			}
			return nil
		}
		k.put("workers", "InService", id(1))
		k.interrupt(k.node(id(1)), nil)
		time.Sleep(5 * time.Second)
		if got := k.answer("node-" + id(1)); got.State != provisioner.StateRequested {
			t.Errorf("after 5 s: %+v", got)
		}
		time.Sleep(25 * time.Second)
		if got := k.answer("node-" + id(1)); got.State != provisioner.StateUnsupported || !strings.Contains(got.Reason, "connection refused") {
			t.Errorf("after 30 s: %+v", got)
		}
		k.mu.Lock()
		away = false
		k.mu.Unlock()
		time.Sleep(30 * time.Second)
		if got := k.answer("node-" + id(1)); got.State != provisioner.StateLaunched {
			t.Errorf("when it is back: %+v", got)
		}
		if n := len(k.of(describeInstances)); n > 20 {
			t.Errorf("%d calls in a minute", n)
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

// A group that ends an instance by itself may want no other, and does not let it go.
func TestNoReplacementOfAnInstanceThatItsGroupEnds(t *testing.T) {
	api := newCloud()
	api.put("workers", "Terminating:Wait", id(1))
	b := New(Options{AutoScaling: api})
	moving := provisioner.Need{Moving: []*corev1.Pod{{}}}
	for name, rec := range map[string]interruption.Record{
		"without a notice":    {Kind: interruption.InstanceTerminating, Instance: id(1)},
		"with a spot notice":  {Kind: interruption.SpotInterruption, Instance: id(1), Hooks: []interruption.Hook{{Group: "workers", Name: "drain"}}},
		"of another backend":  {Kind: interruption.InstanceTerminating, Instance: id(1), Replacement: &interruption.Replacement{Backend: provisioner.Placeholder, Name: "p"}},
		"looked up until now": {Kind: interruption.InstanceTerminating, Instance: id(1), Replacement: &interruption.Replacement{Backend: provisioner.ASG, State: provisioner.StateRequested}},
	} {
		for what, ask := range map[string]func() (interruption.Replacement, error){
			"request": func() (interruption.Replacement, error) { return b.Request(t.Context(), &corev1.Node{}, rec, moving) },
			"choose":  func() (interruption.Replacement, error) { return b.Choose(t.Context(), &corev1.Node{}, rec, moving) },
		} {
			if got, err := ask(); err != nil || got.State != provisioner.StateUnsupported || got.Reason != reasonEnds {
				t.Errorf("%s %s: %+v, %v", what, name, got, err)
			}
		}
	}
	if n := len(api.calls); n != 0 {
		t.Errorf("%d calls", n)
	}
}

func TestChooseOnlyAsks(t *testing.T) {
	c := newCloud()
	c.put("workers", "InService", id(1))
	b := New(Options{AutoScaling: c})
	rec := interruption.Record{Kind: interruption.SpotInterruption, Instance: id(1)}
	got, err := b.Choose(context.Background(), &corev1.Node{}, rec, provisioner.Need{Moving: []*corev1.Pod{{}}})
	want := interruption.Replacement{Backend: "asg", Name: "workers", Pool: "workers", State: provisioner.StateRequested}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if fmt.Sprint(len(c.calls)) != "1" || c.state[id(1)] != "InService" {
		t.Errorf("calls %v", c.calls)
	}
}
