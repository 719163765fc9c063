package asg

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

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

// If a new leader's watch lags, the record that it sees doesn't name the group yet that its predecessor detached the
// instance from.
func TestRecordNamesTheGroupLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		n := k.node(id(1))
		k.interrupt(n, nil)
		time.Sleep(settled)
		if got := k.answer(n.Name); got.State != provisioner.StateUnsupported {
			t.Fatalf("got %+v", got)
		}
		k.interrupt(n, func(r *interruption.Record) {
			r.Replacement = &interruption.Replacement{Backend: "asg", Name: "workers", Pool: "workers", State: provisioner.StateRequested}
		})
		time.Sleep(settled)
		if got := k.answer(n.Name); got.State != provisioner.StateLaunched || !got.Detached {
			t.Errorf("got %+v", got)
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

// Once a node was refused, its record no longer names its group. At the next attempt, the record has to name the group
// again before the instance leaves.
func TestRefusedNodeIsRecordedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.suspended["workers"] = true
		k.put("workers", "InService", id(1))
		n := k.node(id(1))
		k.interrupt(n, func(r *interruption.Record) { r.Deadline = time.Now().Add(time.Hour) })
		k.want(id(1), provisioner.StateUnsupported, "")
		k.mu.Lock()
		k.suspended["workers"] = false
		k.mu.Unlock()
		k.writes = false
		for range 20 {
			time.Sleep(refusedFor / 10)
			k.ask(n.Name)
		}
		if n := len(k.of(detachInstances)); n != 0 {
			t.Errorf("%d calls to detach, and the record names no group", n)
		}
		k.writes = true
		k.answers = map[string]interruption.Replacement{}
		k.ask(n.Name)
		k.want(id(1), provisioner.StateLaunched, "workers")
	})
}

// A group that cannot let instances go for minutes does not hold up those of others.
func TestOneBusyGroupDoesNotHoldUpTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.fail = func(a string, ids []string) error {
			if a == detachInstances && slices.Contains(ids, id(1)) {
				return apiError("ResourceContention")
			}
			return nil
		}
		k.put("busy", "InService", id(1))
		k.interrupt(k.node(id(1)), nil)
		for i := range 10 {
			time.Sleep(7 * time.Second)
			k.put("workers", "InService", id(2+i))
			k.interrupt(k.node(id(2+i)), nil)
			time.Sleep(4 * longestPause)
			if got := k.answer("node-" + id(2+i)); got.State != provisioner.StateLaunched {
				t.Errorf("node %d: %+v after %s", i, got, 4*longestPause)
			}
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
