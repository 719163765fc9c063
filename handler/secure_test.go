package handler

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// A recommended node is in service until its replacement is Ready: it is neither cordoned nor
// drained, and its record says what it waits for.
func TestNodeIsMarkedWhenItsReplacementIsReady(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.accept(t)
		for _, s.state = range []string{provisioner.StateRequested, provisioner.StateLaunched, provisioner.StateLaunched} {
			s.steps(t, 1)
			rec := wantPhase(t, s.nodes, interruption.Waiting)
			if node, _ := s.nodes.raw(t); node.Spec.Unschedulable || len(node.Spec.Taints) > 0 || rec.Begun.IsZero() || rec.Replacement.Name != "claim" {
				t.Fatalf("cordon %v, record %s; want it in service, and a replacement under way", node.Spec.Unschedulable, rec)
			}
		}
		if s.nodes.patches != 2 { // the record, and the request
			t.Errorf("%d patches up to here, want 2", s.nodes.patches)
		}
		time.Sleep(40 * time.Second)
		s.state = provisioner.StateReady
		s.steps(t, 1)
		rec := wantPhase(t, s.nodes, interruption.Noticed)
		if node, _ := s.nodes.raw(t); !node.Spec.Unschedulable || rec.Replacement.State != provisioner.StateReady || time.Since(rec.Begun) > 0 {
			t.Fatalf("cordon %v, record %s; want it marked now", node.Spec.Unschedulable, rec)
		}
	})
}

// A notice does not wait for the replacement, and uses the one that was requested.
func TestNoticeTakesOverTheReplacement(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.state = provisioner.StateRequested
		s.accept(t)
		s.steps(t, 1)
		var asked *interruption.Replacement
		s.h.opts.Provisioner = &fakeProvisioner{RequestFunc: func(rec interruption.Record) (interruption.Replacement, error) {
			asked = rec.Replacement
			return *asked, nil
		}}
		accept(t, s.h, notice(interruption.SpotInterruption))
		if node, _ := s.nodes.raw(t); !node.Spec.Unschedulable {
			t.Error("not cordoned on the notice")
		}
		s.steps(t, 1)
		wantPhase(t, s.nodes, interruption.Replacing)
		if asked == nil || asked.Name != "claim" || s.in.Capacity != plan.PendingCapacity || s.in.Deadline.IsZero() {
			t.Errorf("asked about %+v, drained with %+v; want the replacement that is on its way", asked, s.in)
		}
	})
}

// What failed on a recommendation is decided again on the notice.
func TestNoticeIsNotBoundByARefusal(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.state = provisioner.StateFailed
		s.accept(t)
		s.steps(t, 1)
		if rec := wantPhase(t, s.nodes, interruption.Waiting); rec.Replacement == nil || rec.Replacement.State != provisioner.StateFailed || rec.Replacement.Name != "" {
			t.Fatalf("record %s, want it to say that there is no replacement, without a name", rec)
		}
		accept(t, s.h, notice(interruption.SpotInterruption))
		s.state = provisioner.StateReady
		s.steps(t, 1)
		if rec := wantPhase(t, s.nodes, interruption.Draining); rec.Replacement.State != provisioner.StateReady {
			t.Errorf("record %s", rec)
		}
	})
}

// Where no pod would leave, nothing is requested, and the node stays in service. It is looked at
// now and then: what stays today may leave later.
func TestNothingIsRequestedForPodsThatStay(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.left, s.staying = 0, 2
		s.accept(t)
		if again := s.steps(t, 3); again == 0 || again > rebalanceLook {
			t.Errorf("looks again in %s", again)
		}
		rec := wantPhase(t, s.nodes, interruption.Waiting)
		if node, _ := s.nodes.raw(t); node.Spec.Unschedulable || s.requests > 0 || rec.Replacement.State != provisioner.StateUnsupported {
			t.Fatalf("cordon %v, %d requests, record %s; want it left alone, and why", node.Spec.Unschedulable, s.requests, rec)
		}
		time.Sleep(rebalanceLook)
		s.left = 1
		s.steps(t, 2)
		wantPhase(t, s.nodes, interruption.Replacing)
	})
}

// A node that is passed over is left alone for a minute, but its record says why at once, even if the first write
// fails.
func TestPassIsRecordedAgain(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.left, s.staying = 0, 2
		s.accept(t)
		s.failsOnce(t)
		s.steps(t, 1)
		if rec := wantPhase(t, s.nodes, interruption.Waiting); rec.Replacement == nil || rec.Replacement.State != provisioner.StateUnsupported {
			t.Errorf("record %s, want it to say why no pod leaves", rec)
		}
		patches := s.nodes.patches
		s.steps(t, 2)
		if n := s.nodes.patches - patches; n > 0 {
			t.Errorf("%d more patches, want none", n)
		}
	})
}

// Until the failure has been written, the record still names the failed replacement, so only that one is asked about.
func TestFailedReplacementIsFollowedUntilRecorded(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.state = provisioner.StateRequested
		s.accept(t)
		s.steps(t, 2)
		var asked *interruption.Replacement
		s.h.opts.Provisioner = &fakeProvisioner{RequestFunc: func(rec interruption.Record) (interruption.Replacement, error) {
			asked = rec.Replacement
			return interruption.Replacement{Backend: "karpenter", Name: "claim", State: provisioner.StateFailed}, nil
		}}
		s.failsOnce(t)
		s.steps(t, 1)
		rec := wantPhase(t, s.nodes, interruption.Waiting)
		if asked == nil || asked.Name != "claim" || rec.TurnTaken() || rec.Replacement.State != provisioner.StateFailed {
			t.Errorf("asked about %+v, record %s; want the one that has failed, and the turn given back", asked, rec)
		}
	})
}

// failsOnce reconciles once, and the first write fails.
func (s *atRisk) failsOnce(t *testing.T) {
	t.Helper()
	s.nodes.fails = apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
	if _, err := step(t, s.h); err == nil {
		t.Fatal("no error, want the write's error")
	}
}

// A recommendation that came to nothing, a rehearsal for example, doesn't delay the next one.
func TestRecommendationIsNotBoundByTheLastOne(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.left, s.staying = 0, 2
		accept(t, s.h, notice(interruption.RebalanceRecommendation, func(n *interruption.Notice) {
			n.Source, n.EventID = interruption.Rehearsal, "rehearsal-1"
		}))
		s.steps(t, 3)
		wantPhase(t, s.nodes, interruption.Waiting)
		s.left = 1
		s.accept(t)
		s.steps(t, 2)
		wantPhase(t, s.nodes, interruption.Replacing)
	})
}

// A replacement that was requested while pods would have left is the notice's, too: two would be made
// for one interruption otherwise.
func TestWhatWasRequestedIsThereForTheNotice(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.state = provisioner.StateRequested
		s.accept(t)
		s.steps(t, 1)
		asked := wantPhase(t, s.nodes, interruption.Waiting).Replacement
		if asked == nil || asked.Name == "" {
			t.Fatalf("replacement %v, want one requested", asked)
		}
		s.left, s.staying = 0, 2
		s.steps(t, 2)
		rec := wantPhase(t, s.nodes, interruption.Waiting)
		if node, _ := s.nodes.raw(t); node.Spec.Unschedulable || rec.TurnTaken() || rec.Replacement == nil || rec.Replacement.Name != asked.Name {
			t.Fatalf("cordon %v, record %s; want the node in service, and what was requested", node.Spec.Unschedulable, rec)
		}
		accept(t, s.h, notice(interruption.SpotInterruption))
		s.left, s.staying, s.state = 2, 0, provisioner.StateReady
		s.steps(t, 1)
		if rec := wantPhase(t, s.nodes, interruption.Draining); rec.Replacement.Name != asked.Name || rec.Replacement.State != provisioner.StateReady {
			t.Errorf("record %s, want the drain to go to %s", rec, asked.Name)
		}
	})
}

// Pods that leave, and the grace periods of those that are leaving, are progress.
func TestProgressPutsOffTheTTL(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.begun = true
		s.accept(t)
		s.steps(t, 3)
		wantPhase(t, s.nodes, interruption.Draining)
		const most = 59 * time.Minute
		for s.left = 2; s.left > 0; s.left-- {
			time.Sleep(most)
			s.steps(t, 1)
			wantPhase(t, s.nodes, interruption.Draining)
		}
		s.left = 1
		time.Sleep(most)
		s.leaving = time.Now().Add(2 * time.Hour)
		s.steps(t, 1)
		time.Sleep(2*time.Hour + most)
		s.steps(t, 1)
		wantPhase(t, s.nodes, interruption.Draining)
		time.Sleep(2 * time.Minute)
		s.steps(t, 1)
		s.unmarked(t)
	})
}

// A drain without progress loses its place before those that wait for it lapse. Its instance has
// left its group and cannot go back, so that is all that it loses.
func TestDetachedInstanceOnlyLosesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 2, func(o *setup) {
			o.Provisioner = &fakeProvisioner{RequestFunc: func(rec interruption.Record) (interruption.Replacement, error) {
				return interruption.Replacement{Backend: provisioner.ASG, Name: "i-new", State: provisioner.StateReady}, nil
			}}
		})
		defer f.watcher.Stop()
		f.recommend(t, 0)
		f.want(t, 0, 1, 0)
		f.recommend(t, 1)
		time.Sleep(14 * time.Minute)
		f.h.Enqueue("a-00")
		f.want(t, 1, 1, 0)
		time.Sleep(2 * time.Minute)
		f.h.Enqueue("a-00")
		f.want(t, 0, 2, 0)
		time.Sleep(time.Hour)
		f.h.Enqueue("a-00")
		f.want(t, 0, 2, 0)
	})
}

// fromGroup is a fleet of which the first node's instance has left its group. answer is what the group
// has given, and other nodes have replacements at once.
func fromGroup(t *testing.T, answer *interruption.Replacement) *fleet {
	return newFleet(t, 2, func(o *setup) {
		o.Provisioner = &fakeProvisioner{
			RequestFunc: func(rec interruption.Record) (interruption.Replacement, error) {
				if rec.Instance == fleetInstance(0, "a") {
					return *answer, nil
				}
				return interruption.Replacement{Backend: provisioner.Karpenter, Name: "new", State: provisioner.StateReady}, nil
			},
			ReleaseFunc: func(interruption.Record) error { return nil },
		}
	})
}

// A detached instance that waits for its group's replacement loses its place in line after a while, as
// a drain without progress does.
func TestNodeThatWaitsForItsGroupLosesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fromGroup(t, &interruption.Replacement{
			Backend: provisioner.ASG, Name: "workers", Pool: "workers", State: provisioner.StateLaunched, Detached: true,
		})
		defer f.watcher.Stop()
		f.recommend(t, 0)
		f.want(t, 1, 0, 0)
		f.recommend(t, 1)
		time.Sleep(14 * time.Minute)
		f.h.Enqueue("a-00")
		f.h.Enqueue("a-01")
		f.want(t, 2, 0, 0)
		time.Sleep(2 * time.Minute)
		f.h.Enqueue("a-00")
		f.want(t, 1, 1, 0)
		time.Sleep(2 * time.Hour) // there is no way back
		f.h.Enqueue("a-00")
		f.run(t)
		if rec, err := nodes.Record(f.byName["a-00"]); err != nil || rec.Replacement.Name != "workers" {
			t.Errorf("record %s, %v; want it to wait still", rec, err)
		}
	})
}

// A detached instance for which its group gives nothing is drained without a replacement.
func TestNodeIsDrainedIfItsGroupGivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := &interruption.Replacement{
			Backend: provisioner.ASG, Name: "workers", Pool: "workers", State: provisioner.StateLaunched, Detached: true,
		}
		f := fromGroup(t, answer)
		defer f.watcher.Stop()
		f.recommend(t, 0)
		f.want(t, 1, 0, 0)
		time.Sleep(10 * time.Minute)
		answer.State, answer.Reason = provisioner.StateFailed, "it has given nothing"
		f.h.Enqueue("a-00")
		f.want(t, 0, 1, 0)
		time.Sleep(2 * time.Hour) // it does not go back into service
		f.h.Enqueue("a-00")
		f.want(t, 0, 1, 0)
		f.done["a-00"] = true
		f.h.Enqueue("a-00")
		f.want(t, 0, 0, 1)
	})
}

// Nor does another policy bring a detached instance back.
func TestPolicyComesTooLateForADetachedInstance(t *testing.T) {
	for _, policy := range []interruption.RebalancePolicy{interruption.RebalanceIgnore, interruption.RebalanceCordon} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := &interruption.Replacement{
					Backend: provisioner.ASG, Name: "workers", Pool: "workers", State: provisioner.StateLaunched, Detached: true,
				}
				f := fromGroup(t, answer)
				defer f.watcher.Stop()
				f.recommend(t, 0)
				f.want(t, 1, 0, 0)
				f.h.opts.Rules = func(*corev1.Node, bool) (interruption.Rules, error) {
					return interruption.Rules{Rebalance: policy}, nil
				}
				f.h.Enqueue("a-00")
				f.want(t, 1, 0, 0)
				answer.Name, answer.State = "i-new", provisioner.StateReady
				f.h.Enqueue("a-00")
				f.want(t, 0, 1, 0)
			})
		})
	}
}

// A node without a replacement gives its turn to the next, and is tried again after those that
// have not had theirs.
func TestTurnPassesOnWithoutAReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		none := map[string]bool{fleetInstance(0, "a"): true, fleetInstance(1, "a"): true}
		var asked []string
		f := newFleet(t, 5, func(o *setup) {
			o.Provisioner = &fakeProvisioner{
				RequestFunc: func(rec interruption.Record) (interruption.Replacement, error) {
					if n := len(asked); n == 0 || asked[n-1] != rec.Instance {
						asked = append(asked, rec.Instance)
					}
					if none[rec.Instance] {
						return interruption.Replacement{Backend: "karpenter", Name: "tried", State: provisioner.StateFailed, Reason: "no capacity"}, nil
					}
					return interruption.Replacement{Backend: "karpenter", Name: "new", State: provisioner.StateReady}, nil
				},
				ReleaseFunc: func(interruption.Record) error { return nil },
			}
		})
		defer f.watcher.Stop()
		for i := range 5 {
			f.recommend(t, i)
			time.Sleep(time.Millisecond)
		}
		f.want(t, 4, 1, 0) // the third
		for i := 2; i < 5; i++ {
			time.Sleep(rebalanceLook)
			none = nil
			f.done[fmt.Sprintf("a-%02d", i)] = true
			for i := range 5 {
				f.h.Enqueue(fmt.Sprintf("a-%02d", i))
			}
			f.run(t)
		}
		want := []string{"i-a-00", "i-a-01", "i-a-02", "i-a-03", "i-a-04", "i-a-00"}
		if fmt.Sprint(asked) != fmt.Sprint(want) {
			t.Errorf("replacements requested for %v, want %v", asked, want)
		}
	})
}
