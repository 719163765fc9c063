package asg

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// join adds a Node of an instance that the group has launched.
func (k *cluster) join(group, instance string) *corev1.Node {
	k.put(group, "InService", instance)
	return k.node(instance)
}

func (k *cluster) want(instance, state, name string) {
	k.t.Helper()
	time.Sleep(settled)
	if got := k.answer("node-" + instance); got.State != state || got.Name != name {
		k.t.Errorf("%s: %+v, want %s %s", instance, got, state, name)
	}
}

func TestReplacementsAreGivenOutOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.put("workers", "InService", id(1), id(2), id(3))
		late := func(r *interruption.Record) { r.Deadline = time.Now().Add(time.Hour) }
		never := func(r *interruption.Record) { r.Kind, r.Deadline = interruption.RebalanceRecommendation, time.Time{} }
		nodes := []*corev1.Node{k.node(id(1)), k.node(id(2)), k.node(id(3))}
		time.Sleep(time.Minute)
		k.interrupt(nodes[0], never)
		k.interrupt(nodes[1], late)
		k.interrupt(nodes[2], nil)
		time.Sleep(settled)

		k.join("others", id(10)) // not of this group
		k.node(id(11))           // of none
		k.want(id(3), provisioner.StateLaunched, "workers")
		k.join("workers", id(12))
		k.want(id(3), provisioner.StateReady, id(12)) // the nearest deadline first
		k.want(id(2), provisioner.StateLaunched, "workers")
		k.join("workers", id(13))
		k.want(id(2), provisioner.StateReady, id(13))
		k.want(id(1), provisioner.StateLaunched, "workers")
		k.join("workers", id(14))
		k.want(id(1), provisioner.StateReady, id(14))
		k.want(id(3), provisioner.StateReady, id(12))

		calls := len(k.calls)
		time.Sleep(time.Hour)
		if len(k.calls) != calls {
			t.Errorf("%d calls with nothing to wait for", len(k.calls)-calls)
		}
	})
}

// Only a Node that can take pods counts.
func TestReplacementIsReady(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"not ready": func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse },
		"tainted":   func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/not-ready"}} },
		"uninitialized": func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: "node.cloudprovider.kubernetes.io/uninitialized"}}
		},
		"cordoned": func(n *corev1.Node) { n.Spec.Unschedulable = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				k.put("workers", "InService", id(1))
				k.interrupt(k.node(id(1)), nil)
				time.Sleep(settled)
				joined := k.join("workers", id(2))
				broken := joined.DeepCopy()
				change(broken)
				k.set(broken)
				k.want(id(1), provisioner.StateLaunched, "workers")
				k.set(joined)
				k.want(id(1), provisioner.StateReady, id(2))
			})
		})
	}
}

// What the group was launching already when the first instance left it is no
// replacement, though it joins afterwards. Nor is what has joined before the notice.
func TestWhatWasThereIsNoReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.join("workers", id(20))
		k.put("workers", "InService", id(1))
		k.put("workers", "Pending", id(21))
		k.desired["workers"] = 3
		time.Sleep(time.Minute)
		k.interrupt(k.node(id(1)), nil)
		time.Sleep(settled)
		k.join("workers", id(21))
		k.want(id(1), provisioner.StateLaunched, "workers")
		k.join("workers", id(22))
		k.want(id(1), provisioner.StateReady, id(22))
	})
}

// A group that takes an instance from its warm pool makes another for the pool, which boots
// and is stopped.
func TestWhatIsMadeForTheWarmPoolIsNoReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.put("workers", "InService", id(1))
		k.interrupt(k.node(id(1)), nil)
		time.Sleep(settled)
		k.put("workers", "Warmed:Pending", id(2))
		k.node(id(2))
		k.want(id(1), provisioner.StateLaunched, "workers")
		k.join("workers", id(3))
		k.want(id(1), provisioner.StateReady, id(3))
	})
}

// A later process goes on waiting, and gives nothing out again.
func TestRestartGivesNothingOutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		stop := k.restart()
		k.put("workers", "InService", id(1), id(2))
		k.interrupt(k.node(id(1)), nil)
		k.interrupt(k.node(id(2)), func(r *interruption.Record) { r.Deadline = time.Now().Add(time.Hour) })
		time.Sleep(settled)
		k.join("workers", id(10))
		k.want(id(1), provisioner.StateReady, id(10))
		k.want(id(2), provisioner.StateLaunched, "workers")
		stop()

		k.put("", "", id(1), id(2)) // gone from the group's list meanwhile
		k.restart()
		k.ask("node-" + id(1))
		k.ask("node-" + id(2))
		k.want(id(1), provisioner.StateReady, id(10))
		k.want(id(2), provisioner.StateLaunched, "workers")
		k.join("workers", id(11))
		k.want(id(2), provisioner.StateReady, id(11))
		if n := len(k.of(detachInstances)); n != 1 {
			t.Errorf("%d calls to detach, want 1", n)
		}
	})
}

// What an earlier process has made the group launch is a replacement, also where this
// one looks at the group before it knows of the node that it replaces.
func TestRestartKnowsThatTheGroupIsAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		stop := k.restart()
		k.put("workers", "InService", id(1), id(2))
		k.desired["workers"] = 2
		k.interrupt(k.node(id(1)), nil)
		two := k.node(id(2))
		time.Sleep(settled)
		stop()
		k.put("", "", id(1))
		k.put("workers", "Pending", id(10))

		k.restart()
		k.interrupt(two, func(r *interruption.Record) { r.Deadline = time.Now().Add(time.Hour) })
		time.Sleep(settled)
		k.ask("node-" + id(1))
		time.Sleep(settled)
		k.join("workers", id(10))
		k.want(id(1), provisioner.StateReady, id(10))
		k.join("workers", id(11))
		k.want(id(2), provisioner.StateReady, id(11))
	})
}

// A node that is gone, or over, is not waited for.
func TestNobodyWaitsForANodeThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.put("workers", "InService", id(1), id(2))
		one, two := k.node(id(1)), k.node(id(2))
		k.interrupt(one, nil)
		k.interrupt(two, nil)
		time.Sleep(settled)
		k.nodesMu.Lock()
		delete(k.nodes, one.Name)
		k.nodesMu.Unlock()
		k.interrupt(two, func(r *interruption.Record) { r.Phase = interruption.DeadlineReached })
		time.Sleep(settled)
		k.backend.mu.Lock()
		defer k.backend.mu.Unlock()
		if len(k.backend.entries)+len(k.backend.baselines) != 0 {
			t.Errorf("%d nodes, %d groups are remembered", len(k.backend.entries), len(k.backend.baselines))
		}
	})
}

// A process that takes over searches the Nodes for the replacement of what its predecessor has
// detached, and recorded so, although there is nothing that it would ask Auto Scaling for.
func TestReplacementThatJoinsAfterATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.interrupt(k.node(id(1)), func(r *interruption.Record) {
			r.Replacement = &interruption.Replacement{Backend: "asg", Name: "workers", Pool: "workers", State: provisioner.StateLaunched}
		})
		k.want(id(1), provisioner.StateLaunched, "workers")
		k.join("workers", id(2))
		k.want(id(1), provisioner.StateReady, id(2))
	})
}

// The Nodes are searched for the replacements of those that have left, however many still wait for
// their records to be written.
func TestSearchGoesOnWhileRecordsAreNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.put("workers", "InService", id(1), id(2))
		k.interrupt(k.node(id(1)), nil)
		k.want(id(1), provisioner.StateLaunched, "workers")
		k.nodesMu.Lock()
		k.writes = false
		k.nodesMu.Unlock()
		k.interrupt(k.node(id(2)), nil)
		k.want(id(2), provisioner.StateRequested, "workers")
		time.Sleep(10 * time.Second)
		k.join("workers", id(3))
		k.want(id(1), provisioner.StateReady, id(3))
	})
}

// If a node's interruption is cancelled, its replacement is free for another node. If the node is gone, or its name was
// reused, it keeps the replacement: its pods have moved to it.
func TestReplacementOfACancelledNode(t *testing.T) {
	for name, c := range map[string]struct {
		then  func(k *cluster, n *corev1.Node)
		state string
	}{
		"cancelled": {func(k *cluster, n *corev1.Node) { k.set(n) }, provisioner.StateReady},
		"gone": {func(k *cluster, n *corev1.Node) {
			k.nodesMu.Lock()
			delete(k.nodes, n.Name)
			k.nodesMu.Unlock()
		}, provisioner.StateLaunched},
		"name reused": {func(k *cluster, n *corev1.Node) {
			other := n.DeepCopy()
			other.Spec.ProviderID = "aws:///eu-west-1a/" + id(9)
			k.set(other)
		}, provisioner.StateLaunched},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				k.put("workers", "InService", id(1), id(2))
				first, second := k.node(id(1)), k.node(id(2))
				time.Sleep(time.Minute)
				k.interrupt(first, nil)
				k.interrupt(second, func(r *interruption.Record) { r.Deadline = time.Now().Add(time.Hour) })
				time.Sleep(settled)
				k.join("workers", id(10))
				k.want(id(1), provisioner.StateReady, id(10))
				c.then(k, first)
				time.Sleep(settled)
				if got := k.ask(second.Name); got.State != c.state {
					t.Errorf("the other node's replacement: %+v, want %s", got, c.state)
				}
			})
		})
	}
}
