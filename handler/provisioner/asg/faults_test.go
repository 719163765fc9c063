package asg

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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

// The survey of a group is a help: nodes are replaced all the same without its permission,
// and when it has been throttled for long.
func TestGroupsNeedNotBeDescribed(t *testing.T) {
	for code, within := range map[string]time.Duration{"AccessDenied": settled, "Throttling": patience + settled} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				k.fail = func(a string, _ []string) error {
					if a == describeGroups {
						return apiError(code)
					}
					return nil
				}
				k.put("workers", "InService", id(1))
				k.interrupt(k.node(id(1)), nil)
				time.Sleep(within)
				if got := k.answer("node-" + id(1)); got.State != provisioner.StateLaunched {
					t.Errorf("got %+v", got)
				}
			})
		})
	}
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
