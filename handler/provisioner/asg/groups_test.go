package asg

import (
	"testing"
	"testing/synctest"
	"time"

	"spot-handler/handler/provisioner"
)

// The baseline of a group is a help: nodes are replaced all the same without its permission,
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

// An instance leaves its group without a baseline only once it has waited for one: the baseline tells its
// replacement from what the group launches anyway.
func TestBaselineIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.fail = func(a string, _ []string) error {
			if a == describeGroups {
				return apiError("Throttling")
			}
			return nil
		}
		k.put("workers", "InService", id(1))
		k.interrupt(k.node(id(1)), nil)
		time.Sleep(8 * time.Second)
		if n := len(k.of(detachInstances)); n > 0 {
			t.Errorf("detached within 8 s, without a baseline")
		}
		time.Sleep(7 * time.Second)
		if n := len(k.of(detachInstances)); n != 1 {
			t.Errorf("%d calls to detach within 15 s, want 1", n)
		}
	})
}
