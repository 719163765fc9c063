package asg

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// recommended makes the record that of a rebalance recommendation.
func recommended(r *interruption.Record) {
	r.Kind, r.Deadline = interruption.RebalanceRecommendation, time.Time{}
}

// A group with Capacity Rebalancing launches the replacement of an instance on the rebalance
// recommendation, on top of its desired capacity. Then it launches nothing for an instance that leaves.
func TestReplacementLaunchedAhead(t *testing.T) {
	notice := func(*interruption.Record) {}
	scenes := map[string]struct {
		desired int32
		change  func(*interruption.Record)
		// before is what happens before the interruption is recorded, after what happens a while later.
		before, after func(k *cluster)
		name          string // of the replacement; empty: there is none yet
	}{
		"still Pending on a notice": {
			1, notice,
			func(k *cluster) { k.put("workers", "Pending", id(10)) },
			func(k *cluster) { k.join("workers", id(10)) }, id(10),
		},
		"still Pending on a recommendation": {
			1, recommended,
			func(k *cluster) { k.put("workers", "Pending:Wait", id(10)) },
			func(k *cluster) { k.join("workers", id(10)) }, id(10),
		},
		"Ready before the notice": {
			1, notice,
			func(k *cluster) { k.join("workers", id(10)); time.Sleep(10 * time.Minute) },
			func(*cluster) {}, id(10),
		},
		"one of several that were there": {
			3, notice,
			func(k *cluster) {
				k.join("workers", id(2))
				k.join("workers", id(3))
				time.Sleep(time.Hour)
				k.join("workers", id(10))
				time.Sleep(time.Minute)
			},
			func(*cluster) {}, id(10),
		},
		"of an instance that the group is ending": {
			1, notice,
			func(k *cluster) { k.put("workers", "Terminating:Wait", id(1)); k.put("workers", "Pending", id(10)) },
			func(k *cluster) { k.join("workers", id(10)) }, id(10),
		},
		"of a group that weighs its instances": {
			4, notice,
			func(k *cluster) {
				k.weight[id(1)], k.weight[id(2)], k.weight[id(10)] = "2", "2", "2"
				k.join("workers", id(2))
				time.Sleep(time.Hour)
				k.put("workers", "Pending", id(10))
			},
			func(k *cluster) { k.join("workers", id(10)) }, id(10),
		},
		"none: the group grows": {
			3, notice,
			func(k *cluster) { k.put("workers", "Pending", id(10), id(11)) },
			func(k *cluster) { k.join("workers", id(10)); k.join("workers", id(11)) }, "",
		},
		"none: more than desired were there, of which one is in Standby, and one ends": {
			2, notice,
			func(k *cluster) {
				k.join("workers", id(2))
				k.join("workers", id(3))
				k.join("workers", id(4))
				k.put("workers", "Standby", id(3))
				k.put("workers", "Terminating", id(4))
			},
			func(*cluster) {}, "",
		},
	}
	for name, sc := range scenes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				k.put("workers", "InService", id(1))
				k.desired["workers"] = sc.desired
				n := k.node(id(1))
				time.Sleep(time.Hour)
				sc.before(k)
				k.interrupt(n, sc.change)
				time.Sleep(time.Minute)
				sc.after(k)
				if sc.name == "" {
					k.want(id(1), provisioner.StateLaunched, "workers")
					return
				}
				k.want(id(1), provisioner.StateReady, sc.name)
			})
		})
	}
}

// Two instances are recommended, and the group has launched a replacement for each. Their turns come one
// after the other, and each gets one of the two.
func TestEachInstanceGetsItsReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.put("workers", "InService", id(1), id(2), id(3))
		k.desired["workers"] = 3
		nodes := []*corev1.Node{k.node(id(1)), k.node(id(2)), k.node(id(3))}
		time.Sleep(time.Hour)
		waiting := interruption.NewRecord(interruption.Notice{
			Kind: interruption.RebalanceRecommendation, Source: interruption.Queue, InstanceID: id(2), Received: time.Now(),
		})
		k.set(withRecord(nodes[1], waiting))
		k.put("workers", "Pending", id(10), id(11))
		k.interrupt(nodes[0], recommended)
		time.Sleep(time.Minute)
		other := k.join("workers", id(11))
		booting := other.DeepCopy()
		booting.Status.Conditions[0].Status = corev1.ConditionFalse
		k.set(booting)
		time.Sleep(time.Minute)
		k.join("workers", id(10))
		k.want(id(1), provisioner.StateReady, id(10))
		k.put("", "", id(1))
		k.ask("node-" + id(2))
		k.want(id(2), provisioner.StateLaunched, "workers")
		k.set(other)
		k.want(id(2), provisioner.StateReady, id(11))
	})
}

// A process that takes over finds the replacement that was there before the notice.
func TestReplacementLaunchedAheadAfterATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.desired["workers"] = 1
		k.join("workers", id(10))
		time.Sleep(time.Hour)
		k.interrupt(k.node(id(1)), func(r *interruption.Record) {
			r.Replacement = &interruption.Replacement{Backend: "asg", Name: "workers", Pool: "workers", State: provisioner.StateLaunched}
		})
		k.want(id(1), provisioner.StateReady, id(10))
	})
}

// What has joined since the node's turn came replaces it, also if a notice came in between and this
// process began after that. The group itself cannot be described.
func TestReplacementJoinedBeforeTheNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		k.fail = func(action string, _ []string) error {
			if action == describeGroups {
				return apiError("AccessDenied")
			}
			return nil
		}
		n := k.node(id(1))
		begun := time.Now()
		time.Sleep(time.Minute)
		k.join("workers", id(10))
		time.Sleep(time.Minute)
		k.interrupt(n, func(r *interruption.Record) {
			r.Begun = begun
			r.Replacement = &interruption.Replacement{Backend: "asg", Name: "workers", Pool: "workers", State: provisioner.StateLaunched}
		})
		k.want(id(1), provisioner.StateReady, id(10))
	})
}

// An instance that has left its group for a recommendation is not waited for without end if the group
// launches nothing: there is no way back. On a notice the deadline ends the wait.
func TestWaitForTheGroupIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*interruption.Record)
		state  string
	}{
		"recommended": {recommended, provisioner.StateFailed},
		"on a notice": {func(r *interruption.Record) { r.Deadline = time.Now().Add(time.Hour) }, provisioner.StateLaunched},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := start(t, newCloud())
				k.put("workers", "InService", id(1), id(2))
				k.desired["workers"] = 1 // somebody has just made it smaller
				k.node(id(2))
				n := k.node(id(1))
				time.Sleep(time.Hour)
				k.put("workers", "Terminating", id(2))
				k.interrupt(n, c.change)
				time.Sleep(9 * time.Minute)
				k.want(id(1), provisioner.StateLaunched, "workers")
				time.Sleep(2 * time.Minute)
				k.want(id(1), c.state, "workers")
				got := k.answer("node-" + id(1))
				if !got.Detached {
					t.Errorf("%+v: want it to say that the instance has left its group", got)
				}
			})
		})
	}
}

// The wait does not begin again with the next process.
func TestWaitForTheGroupIsBoundedAcrossProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := start(t, newCloud())
		n := k.node(id(1))
		k.interrupt(n, func(r *interruption.Record) {
			recommended(r)
			r.Begun = time.Now().Add(-9 * time.Minute)
			r.Replacement = &interruption.Replacement{Backend: "asg", Name: "workers", Pool: "workers", State: provisioner.StateRequested}
		})
		k.want(id(1), provisioner.StateLaunched, "workers")
		time.Sleep(2 * time.Minute)
		k.want(id(1), provisioner.StateFailed, "workers")
	})
}
