package asg

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// drained is the record of a node that was rebalanced and is drained.
func drained(instance string) interruption.Record {
	return interruption.Record{
		Kind: interruption.RebalanceRecommendation, Instance: instance, Phase: interruption.Drained,
		Replacement: &interruption.Replacement{Backend: "asg", Name: id(99), Pool: "workers", State: provisioner.StateReady},
	}
}

func TestOnlyWhatWeDetachedForARebalanceIsTerminated(t *testing.T) {
	for name, c := range map[string]struct {
		change func(k *cluster, n *corev1.Node, r *interruption.Record)
		want   bool
	}{
		"rebalanced and drained": {func(*cluster, *corev1.Node, *interruption.Record) {}, true},
		"its replacement not there yet": {func(_ *cluster, _ *corev1.Node, r *interruption.Record) {
			r.Replacement.State = provisioner.StateLaunched
		}, true},
		"still leaving": {func(k *cluster, _ *corev1.Node, r *interruption.Record) { k.put("workers", "Detaching", r.Instance) }, true},
		"spot":          {func(_ *cluster, _ *corev1.Node, r *interruption.Record) { r.Kind = interruption.SpotInterruption }, false},
		"retired and drained": {func(_ *cluster, _ *corev1.Node, r *interruption.Record) {
			r.Kind, r.Action = interruption.ScheduledEvent, interruption.ActionRetirement
		}, true},
		"not drained": {func(_ *cluster, _ *corev1.Node, r *interruption.Record) { r.Phase = interruption.DeadlineReached }, false},
		"detached, and nobody lived to say so": {func(_ *cluster, _ *corev1.Node, r *interruption.Record) {
			r.Replacement.Name, r.Replacement.State = "workers", provisioner.StateRequested
		}, true},
		"being looked up": {func(_ *cluster, _ *corev1.Node, r *interruption.Record) {
			r.Replacement = &interruption.Replacement{Backend: "asg", State: provisioner.StateRequested}
		}, false},
		"not detached": {func(k *cluster, _ *corev1.Node, r *interruption.Record) {
			r.Replacement.Name, r.Replacement.State = "workers", provisioner.StateRequested
			k.put("workers", "InService", r.Instance)
		}, false},
		"refused": {func(_ *cluster, _ *corev1.Node, r *interruption.Record) {
			r.Replacement.State = provisioner.StateFailed
		}, false},
		"of another backend": {func(_ *cluster, _ *corev1.Node, r *interruption.Record) { r.Replacement.Backend = "placeholder" }, false},
		"no replacement":     {func(_ *cluster, _ *corev1.Node, r *interruption.Record) { r.Replacement = nil }, false},
		"rehearsed, to be released": {func(_ *cluster, _ *corev1.Node, r *interruption.Record) {
			r.Kind, r.Source, r.Release, r.Phase = interruption.SpotInterruption, interruption.Rehearsal, true, interruption.DeadlineReached
		}, true},
		"rehearsed": {func(_ *cluster, _ *corev1.Node, r *interruption.Record) {
			r.Kind, r.Source = interruption.SpotInterruption, interruption.Rehearsal
		}, false},
		"another instance": {func(_ *cluster, n *corev1.Node, _ *interruption.Record) {
			n.Spec.ProviderID = "aws:///eu-west-1a/" + id(2)
		}, false},
		"in a group again": {func(k *cluster, _ *corev1.Node, r *interruption.Record) { k.put("other", "InService", r.Instance) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				n, rec := k.node(id(1)), drained(id(1))
				c.change(k, n, &rec)
				if err := k.backend.Terminate(t.Context(), n, rec); err != nil {
					t.Error(err)
				}
				if got := slices.Contains(k.terminated, id(1)); got != c.want {
					t.Errorf("terminated: %v, want %v", got, c.want)
				}
			})
		})
	}
}

// release releases n nodes at once and returns how many got an error.
func (k *cluster) release(n int) (failed int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		node := k.node(id(i))
		wg.Go(func() {
			if err := k.backend.Terminate(k.t.Context(), node, drained(id(i))); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed++
			}
		})
	}
	wg.Wait()
	return failed
}

func TestTerminationsShareTheirCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		if failed := k.release(16); failed != 0 || len(k.terminated) != 16 {
			t.Errorf("%d failed, %d terminated", failed, len(k.terminated))
		}
		if d, n := len(k.of(describeInstances)), len(k.of(terminate)); d != 1 || n != 1 {
			t.Errorf("%d calls to describe, %d to terminate", d, n)
		}
	})
}

func TestTerminationsThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		fail          func(action string, ids []string) error
		failed, ended int
		callsAtMost   int
	}{
		"throttled": {func(a string, _ []string) error {
			if a == terminate {
				return apiError("RequestLimitExceeded")
			}
			return nil
		}, 8, 0, 1},
		"not allowed": {func(a string, _ []string) error {
			if a == terminate {
				return apiError("UnauthorizedOperation")
			}
			return nil
		}, 0, 0, 1},
		"one is gone": {func(a string, ids []string) error {
			if a == terminate && slices.Contains(ids, id(3)) {
				return apiError("InvalidInstanceID.NotFound")
			}
			return nil
		}, 0, 7, 7},
		"groups are unknown": {func(a string, _ []string) error {
			if a == describeInstances {
				return apiError("Throttling")
			}
			return nil
		}, 8, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				k.fail = c.fail
				if failed := k.release(8); failed != c.failed || len(k.terminated) != c.ended {
					t.Errorf("%d failed, %d terminated; want %d, %d", failed, len(k.terminated), c.failed, c.ended)
				}
				if n := len(k.of(terminate)); n > c.callsAtMost {
					t.Errorf("%d calls", n)
				}
			})
		})
	}
}

// Releases wait for the calls of all nodes together. Where those take long, as here 40
// instances that are being detached, they give their workers back, and end their instances
// later.
func TestReleaseHoldsNoWorkerForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud()
		c.delay = 9 * time.Second
		k := start(t, c)
		for i := range 40 {
			k.put("workers", "InService", id(100+i))
			k.interrupt(k.node(id(100+i)), nil)
		}
		time.Sleep(time.Second) // the first 20 are being detached
		node, rec, began := k.node(id(1)), drained(id(1)), time.Now()
		if err := k.backend.Terminate(t.Context(), node, rec); err == nil || time.Since(began) > 3*time.Second {
			t.Errorf("Release: %v after %s, want it to give up soon", err, time.Since(began))
		}
		time.Sleep(time.Minute)
		if len(k.terminated) != 0 {
			t.Fatalf("%v terminated: nobody waits for that any more, and the interruption may have been cancelled", k.terminated)
		}
		if err := k.backend.Terminate(t.Context(), node, rec); err != nil || !slices.Contains(k.terminated, id(1)) {
			t.Errorf("Release, called again: %v, %v terminated", err, k.terminated)
		}
	})
}

// A denial settles the terminations of its call alone: the role can deny one instance for its tags, or
// lack credentials for a moment, and nobody asks for the next one again.
func TestTerminationIsAskedForAfterADenial(t *testing.T) {
	for _, action := range []string{describeInstances, terminate} {
		t.Run(action, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				k.fail = func(a string, ids []string) error {
					if a == action && slices.Contains(ids, id(1)) {
						return apiError("UnauthorizedOperation")
					}
					return nil
				}
				for i := range 2 {
					if err := k.backend.Terminate(t.Context(), k.node(id(i+1)), drained(id(i+1))); err != nil {
						t.Error(err)
					}
				}
				if !slices.Equal(k.terminated, []string{id(2)}) {
					t.Errorf("terminated %q, want the second", k.terminated)
				}
			})
		})
	}
}
