package handler

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// What EC2 leaves alone is undone after the TTL, whatever has become of the replacement.
func TestRecommendationLapses(t *testing.T) {
	for name, tt := range map[string]struct {
		policy   interruption.RebalancePolicy
		state    string // of the replacement
		cordoned bool   // until then
		why      string
	}{
		"cordoned":                       {interruption.RebalanceCordon, "", true, "no pod has left for 1h0m0s"},
		"there is no replacement":        {interruption.RebalanceReplace, provisioner.StateUnsupported, false, "nothing was replaced"},
		"it failed":                      {interruption.RebalanceReplace, provisioner.StateFailed, false, "nothing was replaced"},
		"it has not come":                {interruption.RebalanceReplace, provisioner.StateRequested, false, "nothing was replaced"},
		"it is Ready, and no pod leaves": {interruption.RebalanceReplace, provisioner.StateReady, true, "no pod has left for 1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			recommended(t, func(t *testing.T, s *atRisk) {
				var log bytes.Buffer
				s.h.opts.Logger = zerolog.New(&log)
				s.policy, s.state = tt.policy, tt.state
				s.accept(t)
				again := s.steps(t, 3)
				if again == 0 || again > rebalanceLook {
					t.Errorf("looks again in %s: nothing sees to it", again)
				}
				time.Sleep(time.Hour - time.Second)
				s.steps(t, 1)
				before, _ := s.nodes.now(t)
				if before.Annotations[interruption.Annotation] == "" || before.Spec.Unschedulable != tt.cordoned {
					t.Fatalf("record %q, cordon %v before the TTL", before.Annotations[interruption.Annotation], before.Spec.Unschedulable)
				}
				time.Sleep(2 * time.Second)
				s.steps(t, 2)
				s.unmarked(t)
				if want := `"reason":"EC2 has left the instance alone, and ` + tt.why + `"`; !strings.Contains(log.String(), want) {
					t.Errorf("logged %s, want %s", &log, want)
				}
				if v := accept(t, s.h, notice(interruption.RebalanceRecommendation)); v != interruption.Duplicate {
					t.Errorf("the same recommendation again: %s, want it to stay off", v)
				}
			})
		})
	}
}

// A new leader does not know when a pod has last left, and gives the drain the TTL again, but not for ever: leaders
// can change more often than the TTL passes.
func TestLeadersThatChangePutOffTheTTLForAWhile(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.begun, s.state = true, provisioner.StateReady
		s.accept(t)
		s.steps(t, 3)
		wantPhase(t, s.nodes, interruption.Draining)
		lapsed := time.Duration(0)
		for began := time.Now(); lapsed == 0 && time.Since(began) < 10*time.Hour; {
			time.Sleep(50 * time.Minute)
			s.steps(t, 1)
			if _, has := s.nodes.raw(t); !has {
				lapsed = time.Since(began)
				break
			}
			*s.h.memory.get("node-a") = known{firstDue: time.Now()} // as of the next leader
			s.steps(t, 1)
		}
		if lapsed < 3*time.Hour || lapsed > 4*time.Hour+10*time.Minute {
			t.Errorf("lapsed after %s, want more than three times the TTL, and at most four", lapsed)
		}
		s.unmarked(t)
	})
}

// Without a TTL nothing lapses.
func TestNothingLapsesWithoutTTL(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.h.opts.RebalanceTTL, s.policy = 0, interruption.RebalanceCordon
		s.accept(t)
		time.Sleep(1000 * time.Hour)
		s.steps(t, 2)
		wantPhase(t, s.nodes, interruption.Noticed)
	})
}

// Without a TTL a drain keeps its place, and is looked at now and then.
func TestDrainWithoutTTLKeepsItsPlace(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.h.opts.RebalanceTTL = 0
		s.accept(t)
		s.steps(t, 2)
		time.Sleep(1000 * time.Hour)
		if again := s.steps(t, 1); again != rebalanceLook {
			t.Errorf("looks again in %s, want %s", again, rebalanceLook)
		}
		wantPhase(t, s.nodes, interruption.Replacing)
	})
}

// A node with nothing to move is drained at once and has no replacement. If nobody ends it, as
// with --release-node=false, its marks are undone too.
func TestEmptyNodeLapses(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.h.opts.ReleaseNode, s.left = false, 0
		s.accept(t)
		s.steps(t, 2)
		wantPhase(t, s.nodes, interruption.Drained)
		if again := s.steps(t, 1); again == 0 || again > time.Hour {
			t.Errorf("looks again in %s", again)
		}
		time.Sleep(time.Hour)
		s.steps(t, 1)
		s.unmarked(t)
	})
}

// A node goes back to service if nobody ends it: one whose pods have moved to others that were there, and one that was
// empty before its Auto Scaling group was asked for another. One whose pods have moved to its replacement, or that has
// left its group, does not.
func TestNodeThatNobodyEndsGoesBackToService(t *testing.T) {
	for name, tt := range map[string]struct {
		replacement interruption.Replacement
		undone      bool
	}{
		"room elsewhere":   {interruption.Replacement{Backend: provisioner.Spare, State: provisioner.StateReady}, true},
		"replaced":         {interruption.Replacement{Backend: provisioner.ASG, State: provisioner.StateReady}, false},
		"still in a group": {interruption.Replacement{Backend: provisioner.ASG, State: provisioner.StateRequested, Name: "workers"}, true},
		"has left its group": {
			interruption.Replacement{Backend: provisioner.ASG, State: provisioner.StateRequested, Name: "workers", Detached: true}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			recommended(t, func(t *testing.T, s *atRisk) {
				s.h.opts.Provisioner.(*fakeProvisioner).RequestFunc = func(interruption.Record) (interruption.Replacement, error) {
					return tt.replacement, nil
				}
				s.accept(t)
				s.steps(t, 2)
				s.left = 0
				s.steps(t, 2)
				wantPhase(t, s.nodes, interruption.Released)
				time.Sleep(time.Hour - time.Second)
				s.steps(t, 1)
				wantPhase(t, s.nodes, interruption.Released)
				time.Sleep(2 * time.Second)
				s.steps(t, 1)
				if _, has := s.nodes.raw(t); has == tt.undone {
					t.Errorf("has a record: %t", has)
				}
			})
		})
	}
}

// An admin's cordon, taint and label are left as they were.
func TestLapseLeavesWhatAnAdminHadSet(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.nodes.change(func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Spec.Taints = []corev1.Taint{{Key: "theirs", Effect: corev1.TaintEffectNoSchedule}}
			n.Labels[interruption.ExcludeFromLoadBalancers] = "admin"
		})
		synctest.Wait()
		s.policy = interruption.RebalanceCordon
		s.accept(t)
		time.Sleep(time.Hour)
		s.steps(t, 1)
		node, has := s.nodes.raw(t)
		if has || !node.Spec.Unschedulable || node.Labels[interruption.ExcludeFromLoadBalancers] != "admin" ||
			len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "theirs" {
			t.Errorf("record %v, cordon %v, labels %v, taints %v", has, node.Spec.Unschedulable, node.Labels, node.Spec.Taints)
		}
	})
}
