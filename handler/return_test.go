package handler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// returns is the recommendation of a node that can go back to spot.
func returns(n *interruption.Notice) { n.Source, n.EventID = interruption.Return, "return-claim-1" }

// A node goes back to spot as a recommended one is replaced, whatever the policy for recommendations.
func TestReturn(t *testing.T) {
	for _, policy := range interruption.RebalancePolicies() {
		recommended(t, func(t *testing.T, s *atRisk) {
			s.policy, s.rules.rebalance, s.state = policy, policy, provisioner.StateRequested
			if v := accept(t, s.h, notice(interruption.RebalanceRecommendation, returns)); v != interruption.Accepted {
				t.Fatalf("%s: verdict %s", policy, v)
			}
			s.steps(t, 2)
			if node, _ := s.nodes.raw(t); node.Spec.Unschedulable {
				t.Errorf("%s: cordoned before its new node is Ready", policy)
			}
			s.state = provisioner.StateReady
			s.steps(t, 2)
			wantPhase(t, s.nodes, interruption.Replacing)
			if node, _ := s.nodes.raw(t); !node.Spec.Unschedulable {
				t.Errorf("%s: not cordoned", policy)
			}
			s.left = 0
			s.steps(t, 2)
			wantPhase(t, s.nodes, interruption.Released)
			if s.released != 1 {
				t.Errorf("%s: terminated %d times", policy, s.released)
			}
		})
	}
}

// If there is no spot instance for it, or its new node is lost, the node is at once as it was, and why is
// remembered as an attempt.
func TestReturnComesToNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		first, then string // states of the replacement
		stays       bool   // no pod would leave
	}{
		"no spot instance":              {provisioner.StateUnsupported, "", false},
		"the pool is full":              {provisioner.StateFailed, "", false},
		"none was launched":             {provisioner.StateRequested, provisioner.StateFailed, false},
		"the new node is lost":          {provisioner.StateReady, provisioner.StateFailed, false},
		"no pod leaves by a return":     {provisioner.StateReady, "", true},
		"its replacement goes, nothing": {provisioner.StateLaunched, provisioner.StateUnsupported, false},
	} {
		t.Run(name, func(t *testing.T) {
			recommended(t, func(t *testing.T, s *atRisk) {
				s.state = tt.first
				if tt.stays {
					s.left, s.staying = 0, 2
				}
				stopped := false // surged pods go back first, and nothing tells why by then
				s.h.opts.Drainer.(*fakeDrainer).CancelFunc = func(string) *plan.Canceled {
					if !stopped {
						stopped = true
						return nil
					}
					return &plan.Canceled{}
				}
				accept(t, s.h, notice(interruption.RebalanceRecommendation, returns))
				s.steps(t, 2)
				if tt.then != "" {
					wantRecord(t, s)
					s.state = tt.then
				}
				s.steps(t, 4)
				s.unmarked(t)
				node, _ := s.nodes.raw(t)
				past := interruption.ParsePast(node.Annotations[interruption.PastAnnotation])
				if len(past) != 1 || past[0].Source != interruption.Return || past[0].Off.IsZero() {
					t.Errorf("past %+v, want the attempt", past)
				}
				if s.released != 0 {
					t.Error("the node is terminated")
				}
				if v := accept(t, s.h, notice(interruption.RebalanceRecommendation, returns)); v != interruption.Duplicate {
					t.Errorf("recommended again at once: %s", v)
				}
				time.Sleep(10 * time.Minute)
				again := notice(interruption.RebalanceRecommendation, returns)
				again.EventID = "return-claim-2"
				if v := accept(t, s.h, again); v != interruption.Accepted {
					t.Errorf("recommended again later: %s", v)
				}
			})
		})
	}
}

func wantRecord(t *testing.T, s *atRisk) {
	t.Helper()
	if _, has := s.nodes.raw(t); !has {
		t.Fatal("no record while its new node comes")
	}
}

// A node that is interrupted is not recommended for the way back; one that goes back is interrupted for real,
// and keeps the new node as its replacement.
func TestReturnMeetsAnInterruption(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		accept(t, s.h, notice(interruption.ScheduledEvent, func(n *interruption.Notice) { n.Deadline = n.Noticed.Add(24 * time.Hour) }))
		if v := accept(t, s.h, notice(interruption.RebalanceRecommendation, returns)); v != interruption.Ignored {
			t.Errorf("verdict %s", v)
		}
	})
	for _, state := range []string{provisioner.StateRequested, provisioner.StateReady} {
		recommended(t, func(t *testing.T, s *atRisk) {
			s.state = state
			accept(t, s.h, notice(interruption.RebalanceRecommendation, returns))
			s.steps(t, 3)
			accept(t, s.h, notice(interruption.StateChange, func(n *interruption.Notice) { n.Action = interruption.ActionStopping }))
			s.steps(t, 2)
			node, _ := s.nodes.raw(t)
			rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation])
			if err != nil || rec.Kind != interruption.StateChange || rec.Returns() || rec.Replacement == nil || rec.Replacement.Name != "claim" {
				t.Errorf("%s: %+v, %v", state, rec, err)
			}
		})
	}
}

// A leader that dies in the middle leaves a record, with which the next one goes on.
func TestReturnOutlivesItsLeader(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.state = provisioner.StateRequested
		accept(t, s.h, notice(interruption.RebalanceRecommendation, returns))
		s.steps(t, 2)
		next := newTestHandler(t, s.nodes, func(o *setup) {
			s.options(o)
			o.RebalanceTTL = time.Hour
		})
		s.h, s.state = next, provisioner.StateReady
		s.steps(t, 2)
		wantPhase(t, s.nodes, interruption.Noticed)
	})
}

// An operator cancels it: the node is as it was, and stays off for a while.
func TestReturnCancelled(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		accept(t, s.h, notice(interruption.RebalanceRecommendation, returns))
		s.steps(t, 3)
		s.nodes.change(func(n *corev1.Node) { n.Annotations[interruption.CancelAnnotation] = "true" })
		s.steps(t, 2)
		s.unmarked(t)
		node, _ := s.nodes.raw(t)
		if past := interruption.ParsePast(node.Annotations[interruption.PastAnnotation]); len(past) != 1 || past[0].Source != interruption.Return {
			t.Errorf("past %+v", past)
		}
	})
}
