package asg

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

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
		if n := len(k.of(describeInstances)); n > 40 {
			t.Errorf("%d calls in a minute", n)
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

// One call can ask about 50 instances. A denial is the answer of all that wait, not of the first 50.
func TestMissingPermissionOfManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.fail = func(string, []string) error { return apiError("AccessDenied") }
		for i := range 150 {
			k.put("workers", "InService", id(i))
			k.interrupt(k.node(id(i)), nil)
		}
		time.Sleep(settled)
		for i := range 150 {
			if got := k.answer("node-" + id(i)); got.State != provisioner.StateUnsupported {
				t.Fatalf("node %d: %+v", i, got)
			}
		}
		if n := len(k.of(describeInstances)); n != 1 {
			t.Errorf("%d calls, want 1", n)
		}
	})
}

// A node that was refused is tried again a minute later, when it asks, even if it's the only one.
func TestRefusedNodeIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.fail = func(string, []string) error { return apiError("AccessDenied") }
		k.put("workers", "InService", id(1))
		n := k.node(id(1))
		k.interrupt(n, func(r *interruption.Record) { r.Deadline = time.Now().Add(time.Hour) })
		k.want(id(1), provisioner.StateUnsupported, "")
		k.mu.Lock()
		k.fail = nil
		k.mu.Unlock()
		k.ask(n.Name)
		k.want(id(1), provisioner.StateUnsupported, "")
		time.Sleep(2 * time.Minute)
		k.ask(n.Name)
		k.want(id(1), provisioner.StateLaunched, "workers")
	})
}
