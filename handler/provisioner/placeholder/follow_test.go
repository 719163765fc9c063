package placeholder

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

func TestTakenPlaceholdersAreNotMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		a, b := owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
		c.request(&rec, need(a, b))
		c.take(a)
		c.want(c.request(&rec, need(a, b)), provisioner.StateRequested, "")
		c.held("b")
		c.bind(b, "od-1")
		c.want(c.request(&rec, need(a, b)), provisioner.StateReady, "")

		rec = spot(2 * time.Minute)
		c = newCluster(t, rec, nil)
		c.request(&rec, need(a))
		c.take(a)
		c.want(c.request(&rec, need(a)), provisioner.StateFailed, "no room in time")
		c.want(c.request(&rec, need(a)), provisioner.StateFailed, "no room in time")
		c.held()
		c.templates(0)

		// One that had its place has found room; that another pod has come first does not
		// mean that there is less of it.
		rec = spot(2 * time.Minute)
		c = newCluster(t, rec, nil)
		c.request(&rec, need(a))
		c.bind(a, "od-1")
		c.take(a)
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
		c.held()

		// But if the pods had to leave before all had theirs, there was no room.
		rec = spot(2 * time.Minute)
		c = newCluster(t, rec, nil)
		c.request(&rec, need(a, b))
		c.bind(a, "od-1")
		c.want(c.request(&rec, need(leaving(a), leaving(b))), provisioner.StateFailed, "no room in time")
	})
}

// Once no placeholder is left, nothing would show after a cancellation that their PodTemplate is there: it goes first.
func TestPodTemplateGoesWithItsLastPlaceholder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, rec, a, b := twoBound(t)
		c.want(c.request(&rec, need(leaving(a), b)), provisioner.StateReady, "")
		c.held("b")
		c.templates(1)

		c.failing("delete", "podtemplates", 1, errors.New("API server is down"))
		c.want(c.request(&rec, need(leaving(a), leaving(b))), provisioner.StateReady, "")
		c.templates(1)
		synctest.Wait()
		before := c.timesNotified()
		time.Sleep(again)
		synctest.Wait()
		if c.timesNotified() == before {
			t.Error("not called again after the failure")
		}
		for range 3 {
			c.want(c.request(&rec, need(leaving(a), leaving(b))), provisioner.StateReady, "")
		}
		c.held()
		c.templates(0)
		if n := c.calls()["delete podtemplates"]; n != 2 {
			t.Errorf("PodTemplate deleted %d times, want twice: %v", n, c.calls())
		}
	})
}

// A Node that is not Ready, or not known yet, is asked about again.
func TestRoomCountsOnReadyNodesOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		a := owned("a", "ReplicaSet")
		c.request(&rec, need(a))
		c.bind(a, "od-2")
		c.want(c.request(&rec, need(a)), provisioner.StateLaunched, "")
		c.mu.Lock()
		before := c.notified["node-1"]
		c.nodes["od-2"] = testNode("od-2")
		c.mu.Unlock()
		time.Sleep(again)
		synctest.Wait()
		if c.timesNotified() <= before {
			t.Error("not notified again")
		}
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
	})
}

// The watch is a while behind what was made. Until it shows a placeholder, that has neither found
// its room nor lost it.
func TestWatchIsBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		a, b := owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
		c := newCluster(t, rec, func(o *Options) { o.Pods = behind{listing: listing{o.Pods}, by: time.Second} })
		c.watching()
		c.want(c.request(&rec, need(a, b)), provisioner.StateRequested, "")
		c.want(c.request(&rec, need(a, b)), provisioner.StateRequested, "")
		c.bind(a, "od-1")
		c.bind(b, "od-1")
		count := c.timesNotified()
		for r := *rec.Replacement; r.State != provisioner.StateReady && !t.Failed(); r = c.request(&rec, need(a, b)) {
			if r.State == provisioner.StateFailed {
				t.Errorf("replacement %+v while the watch is behind", r)
			}
			for before := count; count == before && !t.Failed(); count = c.timesNotified() {
				time.Sleep(time.Second)
				synctest.Wait()
				if time.Until(rec.Deadline) < time.Minute {
					t.Error("not notified of what the watch has shown")
				}
			}
		}
	})
}

// One is shown on its node, and another not yet: that is not all of the room.
func TestOneIsNotShownYet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		a, b := owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
		shown := false
		c := newCluster(t, rec, func(o *Options) {
			o.Pods = behind{listing: listing{o.Pods}, never: func(pod *corev1.Pod) bool { return !shown && pod.Name == podName(instance, b.UID) }}
		})
		c.watching()
		c.want(c.request(&rec, need(a, b)), provisioner.StateRequested, "")
		c.bind(a, "od-1")
		c.want(c.request(&rec, need(a, b)), provisioner.StateLaunched, "")
		c.take(a) // it had its place
		c.want(c.request(&rec, need(a, b)), provisioner.StateLaunched, "")
		shown = true
		c.bind(b, "od-1")
		c.want(c.request(&rec, need(a, b)), provisioner.StateReady, "")
	})
}

// A placeholder that was made and removed while the watch was disconnected is never shown. Nobody
// waits for it longer than 20 s; for one that exists all wait.
func TestNeverShown(t *testing.T) {
	for _, removed := range []bool{true, false} {
		t.Run(map[bool]string{true: "removed", false: "exists"}[removed], func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				rec := spot(2 * time.Minute)
				a := owned("a", "ReplicaSet")
				c := newCluster(t, rec, func(o *Options) {
					o.Pods = behind{listing: listing{o.Pods}, never: func(*corev1.Pod) bool { return true }}
				})
				c.watching()
				c.request(&rec, need(a))
				if removed {
					c.take(a)
				}
				time.Sleep(9 * time.Second)
				c.want(c.request(&rec, need(a)), provisioner.StateRequested, "")
				before := c.timesNotified()
				c.failing("list", "pods", 1, apierrors.NewInternalError(errors.New("etcd is unreachable")))
				time.Sleep(22 * time.Second) // with one list that fails
				synctest.Wait()
				if notified := c.timesNotified() > before; notified != removed {
					t.Errorf("notified: %t, want %t", notified, removed)
				}
				if removed {
					c.want(c.request(&rec, need(a)), provisioner.StateFailed, "no room in time: their pods have left, or the placeholders were removed")
					c.templates(0)
				} else {
					c.want(c.request(&rec, need(a)), provisioner.StateRequested, "")
					c.templates(1)
				}
			})
		})
	}
}

// A new process answers what the record says until it has listed the placeholders, and then has the
// node asked again.
func TestNotListedYet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		rec.Replacement = &interruption.Replacement{Backend: provisioner.Placeholder, Name: nameOf(instance), State: provisioner.StateLaunched}
		unreachable := true
		c := newCluster(t, rec, func(o *Options) {
			o.Pods = unlisted{listing{o.Pods}, &unreachable}
		})
		a := owned("a", "ReplicaSet")
		c.want(c.request(&rec, need(a)), provisioner.StateLaunched, "")
		time.Sleep(10 * time.Second)
		c.want(c.request(&rec, need(a)), provisioner.StateLaunched, "")
		before := c.timesNotified()
		unreachable = false
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if c.timesNotified() <= before {
			t.Error("not notified that the placeholders are known")
		}
		c.want(c.request(&rec, need(a)), provisioner.StateFailed, "no room in time")
	})
}

// unlisted cannot be listed while the API server is unreachable.
type unlisted struct {
	listing
	unreachable *bool
}

func (p unlisted) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	if *p.unreachable {
		return nil, apierrors.NewInternalError(errors.New("etcd is unreachable"))
	}
	return p.listing.List(ctx, o)
}

// What was Ready stays so, whatever becomes of the placeholders.
func TestReadyIsFinal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		a := owned("a", "ReplicaSet")
		c.request(&rec, need(a))
		c.bind(a, "od-1")
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
		c.bind(a, "od-unknown")
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
		c.take(a)
		time.Sleep(16 * time.Minute) // nor does it end by time
		c.want(c.request(&rec, need(a)), provisioner.StateReady, "")
	})
}

// A placeholder that its kubelet has evicted holds no room, and nothing would remove it.
func TestEvictedPlaceholderIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := spot(2 * time.Minute)
		c := newCluster(t, rec, nil)
		a, b := owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
		c.request(&rec, need(a, b))
		c.bind(a, "od-1")
		p, err := c.CoreV1().Pods(Namespace).Get(t.Context(), podName(instance, a.UID), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Status.Phase = corev1.PodFailed
		before := c.timesNotified()
		if _, err := c.CoreV1().Pods(Namespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if c.timesNotified() <= before {
			t.Error("not notified")
		}
		c.want(c.request(&rec, need(a, b)), provisioner.StateRequested, "")
		c.held("b")
	})
}

// A deletion that fails is repeated, and names the pod that it is about: another of the name stays.
func TestDeletionFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, rec, a, b := twoBound(t)
		c.want(c.request(&rec, need(a, b)), provisioner.StateReady, "")
		c.failing("delete", "pods", 1, apierrors.NewInternalError(errors.New("etcd is unreachable")))
		before := c.timesNotified()
		c.want(c.request(&rec, need(leaving(a), b)), provisioner.StateReady, "")
		c.held("a", "b")
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if c.timesNotified() <= before {
			t.Error("not notified again")
		}
		for range 3 {
			c.want(c.request(&rec, need(leaving(a), b)), provisioner.StateReady, "")
			c.held("b")
		}
		if n := c.calls()["delete pods"]; n != 2 {
			t.Errorf("%d deletions, want 2: one that failed, and one more", n)
		}
		for _, action := range c.Actions() {
			if d, ok := action.(clienttesting.DeleteAction); ok && action.GetResource() == podResource {
				if p := d.GetDeleteOptions().Preconditions; p == nil || p.UID == nil || *p.UID != types.UID("uid-of-"+d.GetName()) {
					t.Errorf("deletion of %s with preconditions %+v", d.GetName(), p)
				}
			}
		}
	})
}

func TestNoRoomInTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		rec := rebalance()
		c := newCluster(t, rec, nil)
		a, b := owned("a", "ReplicaSet"), owned("b", "ReplicaSet")
		c.request(&rec, need(a, b))
		c.bind(a, "od-1")
		time.Sleep(14 * time.Minute)
		c.want(c.request(&rec, need(a, b)), provisioner.StateLaunched, "")
		before := c.timesNotified()
		time.Sleep(time.Minute + 10*time.Second)
		synctest.Wait()
		if c.timesNotified() <= before {
			t.Error("not notified that the time is over")
		}
		c.want(c.request(&rec, need(a, b)), provisioner.StateFailed, "no room in time for 1 of 2 placeholders")
		c.templates(0)
	})
}
