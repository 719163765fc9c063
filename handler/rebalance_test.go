package handler

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// atRisk is a course of one node whose pool has a policy of its own, and which EC2 leaves alone
// unless a test says otherwise.
type atRisk struct {
	*script
	nodes   *fakeNodes
	h       *Handler
	rules   *rules
	policy  interruption.RebalancePolicy
	unknown error // why the policy is not known
}

func recommended(t *testing.T, f func(t *testing.T, s *atRisk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &atRisk{script: &script{state: provisioner.StateReady, left: 3}, nodes: newFakeNodes(testNode())}
		defer s.nodes.watcher.Stop()
		s.h = newTestHandler(t, s.nodes, func(o *setup) {
			s.options(o)
			o.RebalanceTTL = time.Hour
			s.rules, o.rules.pool = &o.rules, func() (interruption.RebalancePolicy, error) { return s.policy, s.unknown }
			o.Drainer.(*fakeDrainer).CancelFunc = func(string) *plan.Canceled { return &plan.Canceled{} }
		})
		f(t, s)
	})
}

func (s *atRisk) accept(t *testing.T) interruption.Verdict {
	t.Helper()
	return accept(t, s.h, notice(interruption.RebalanceRecommendation))
}

// steps reconciles n times, and returns when to look again.
func (s *atRisk) steps(t *testing.T, n int) (again time.Duration) {
	t.Helper()
	for range n {
		var err error
		if again, err = step(t, s.h); err != nil {
			t.Fatal(err)
		}
	}
	return again
}

// unmarked checks that the node carries nothing of ours.
func (s *atRisk) unmarked(t *testing.T) {
	t.Helper()
	node, has := s.nodes.raw(t)
	if has || node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
		t.Fatalf("record %v, cordon %v, taints %v; want the node as it was", has, node.Spec.Unschedulable, node.Spec.Taints)
	}
}

func TestPolicyOfThePoolGoesBeforeTheFlag(t *testing.T) {
	for _, tt := range []struct {
		flag, pool interruption.RebalancePolicy
		want       interruption.Verdict
		phase      interruption.Phase
	}{
		{interruption.RebalanceReplace, "", interruption.Accepted, interruption.Waiting},
		{interruption.RebalanceReplace, interruption.RebalanceCordon, interruption.Accepted, interruption.Noticed},
		{interruption.RebalanceReplace, interruption.RebalanceIgnore, interruption.Ignored, ""},
		{interruption.RebalanceIgnore, "", interruption.Ignored, ""},
		{interruption.RebalanceIgnore, interruption.RebalanceReplace, interruption.Accepted, interruption.Waiting},
		{interruption.RebalanceCordon, interruption.RebalanceReplace, interruption.Accepted, interruption.Waiting},
	} {
		recommended(t, func(t *testing.T, s *atRisk) {
			s.rules.rebalance, s.policy = tt.flag, tt.pool
			if got := s.accept(t); got != tt.want {
				t.Errorf("%+v: verdict %s", tt, got)
			}
			if tt.phase == "" {
				s.unmarked(t)
				return
			}
			wantPhase(t, s.nodes, tt.phase)
			if node, _ := s.nodes.raw(t); node.Spec.Unschedulable != (tt.phase == interruption.Noticed) {
				t.Errorf("%+v: cordon %v", tt, node.Spec.Unschedulable)
			}
		})
	}
}

// A spot notice is accepted, whatever the policy, and without reading it.
func TestPolicyIsNotAskedForNotices(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.rules.pool = func() (interruption.RebalancePolicy, error) {
			t.Error("asked")
			return interruption.RebalanceIgnore, nil
		}
		if v := accept(t, s.h, notice(interruption.SpotInterruption)); v != interruption.Accepted {
			t.Errorf("verdict %s", v)
		}
		s.steps(t, 1)
	})
}

// A policy that cannot be read costs no recommendation, and no node its place: the
// recommendation is recorded, and judged when the policy is known.
func TestUnknownPolicyIsJudgedLater(t *testing.T) {
	for policy, phase := range map[interruption.RebalancePolicy]interruption.Phase{
		interruption.RebalanceIgnore: "", interruption.RebalanceCordon: interruption.Noticed, interruption.RebalanceReplace: interruption.Noticed,
	} {
		recommended(t, func(t *testing.T, s *atRisk) {
			s.rules.rebalance, s.unknown = interruption.RebalanceIgnore, errors.New("API server is unreachable")
			s.accept(t)
			if again := s.steps(t, 2); again != policyRetry {
				t.Errorf("again in %s, want %s", again, policyRetry)
			}
			wantPhase(t, s.nodes, interruption.Waiting)
			s.policy, s.unknown = policy, nil
			s.steps(t, 1)
			if phase == "" {
				s.unmarked(t)
				return
			}
			if rec := wantPhase(t, s.nodes, phase); rec.Begun.IsZero() == (policy == interruption.RebalanceReplace) {
				t.Errorf("%s: begun %v", policy, rec.Begun)
			}
		})
	}
}

// When a policy changes, nodes that have not begun follow it.
func TestPolicyThatChanges(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.policy = interruption.RebalanceCordon
		s.accept(t)
		if again := s.steps(t, 2); again != rebalanceLook || s.requests != 0 {
			t.Fatalf("again in %s, %d requests; want to be looked at now and then, and no more", again, s.requests)
		}
		s.policy = interruption.RebalanceReplace
		s.steps(t, 2)
		wantPhase(t, s.nodes, interruption.Replacing)
		s.policy = interruption.RebalanceIgnore
		s.begun = true
		s.steps(t, 2)
		wantPhase(t, s.nodes, interruption.Draining) // carries on
	})
	recommended(t, func(t *testing.T, s *atRisk) {
		s.policy = interruption.RebalanceCordon
		s.accept(t)
		s.steps(t, 1)
		s.policy = interruption.RebalanceIgnore
		s.steps(t, 1)
		s.unmarked(t)
	})
}

// Rebalance cordons, the later notice drains.
func TestNoticeDrainsWhatWasCordoned(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.policy = interruption.RebalanceCordon
		s.accept(t)
		s.steps(t, 1)
		accept(t, s.h, notice(interruption.SpotInterruption))
		s.steps(t, 1)
		if rec := wantPhase(t, s.nodes, interruption.Draining); rec.Kind != interruption.SpotInterruption || s.in.Deadline.IsZero() {
			t.Errorf("record %s, deadline %s", rec, s.in.Deadline)
		}
	})
}

// A scheduled event of the same instance outlives the recommendation, which does not bring it forward.
func TestScheduledEventBesideARecommendation(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.rules.lead = 30 * time.Minute
		window := time.Now().Add(48 * time.Hour)
		accept(t, s.h, notice(interruption.ScheduledEvent, func(n *interruption.Notice) { n.EventID, n.Deadline = "event-0", window }))
		s.accept(t)
		s.steps(t, 2)
		if rec := wantPhase(t, s.nodes, interruption.Replacing); len(rec.Announced) != 2 || !s.in.Deadline.IsZero() {
			t.Fatalf("record %s, deadline of the drain %s", rec, s.in.Deadline)
		}
		time.Sleep(time.Hour)
		s.steps(t, 1)
		rec := wantPhase(t, s.nodes, interruption.Waiting)
		if node, _ := s.nodes.raw(t); node.Spec.Unschedulable || rec.Kind != interruption.ScheduledEvent || rec.Deadline.IsZero() || len(rec.Ours) > 0 {
			t.Fatalf("record %s, cordon %v; want the event alone", rec, node.Spec.Unschedulable)
		}
		time.Sleep(time.Until(window) - 30*time.Minute)
		s.steps(t, 2)
		if s.in.Deadline.IsZero() {
			t.Error("the event's drain has no deadline")
		}
	})
	// The event's time comes while the node stands in line, or is only cordoned.
	recommended(t, func(t *testing.T, s *atRisk) {
		s.h.opts.RebalanceTTL = 0
		s.policy = interruption.RebalanceCordon
		window := time.Now().Add(2 * time.Hour)
		accept(t, s.h, notice(interruption.ScheduledEvent, func(n *interruption.Notice) { n.EventID, n.Deadline = "event-0", window }))
		s.accept(t)
		time.Sleep(2*time.Hour - time.Minute)
		s.rules.lead = 30 * time.Minute
		s.steps(t, 2)
		if !s.in.Deadline.Equal(window) {
			t.Errorf("deadline of the drain %s, want %s", s.in.Deadline, window)
		}
	})
}

// A node needs its replacement if anything moves, however many of its pods stay.
func TestAsManyPodsStayAsMove(t *testing.T) {
	recommended(t, func(t *testing.T, s *atRisk) {
		s.state, s.left, s.staying = provisioner.StateRequested, 2, 2
		s.accept(t)
		s.steps(t, 2)
		if rec := wantPhase(t, s.nodes, interruption.Waiting); s.requests == 0 || rec.Replacement == nil {
			t.Errorf("%d requests, record %s; want it to wait for its replacement", s.requests, rec)
		}
		s.state = provisioner.StateReady
		s.steps(t, 2)
		if rec := wantPhase(t, s.nodes, interruption.Replacing); rec.Begun.IsZero() {
			t.Errorf("record %s; want it under way", rec)
		}
	})
}

// unwritable are Nodes whose patches fail as long as there is an error.
type unwritable struct {
	*fakeNodes
	err error
}

func (u *unwritable) Mark(ctx context.Context, name string, kind types.PatchType, data []byte) error {
	if u.err != nil {
		return u.err
	}
	return u.fakeNodes.Mark(ctx, name, kind, data)
}

func (u *unwritable) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions, sub ...string) (*corev1.Node, error) {
	if u.err != nil {
		return nil, u.err
	}
	return u.fakeNodes.Patch(ctx, name, kind, data, o, sub...)
}

// If it can't be written that a node stays in service, its worker is told, and it's written later.
func TestStayInServiceIsWrittenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &atRisk{script: &script{state: provisioner.StateUnsupported, left: 3}, nodes: newFakeNodes(testNode())}
		defer s.nodes.watcher.Stop()
		client := &unwritable{fakeNodes: s.nodes}
		s.h = newTestHandler(t, s.nodes, func(o *setup) {
			s.options(o)
			o.Nodes, o.RebalanceTTL = client, time.Hour
		})
		s.accept(t)
		client.err = errors.New("API server is unreachable")
		if _, err := step(t, s.h); !errors.Is(err, client.err) {
			t.Errorf("error %v, want that of the write", err)
		}
		if rec := wantPhase(t, s.nodes, interruption.Waiting); rec.Replacement != nil {
			t.Fatalf("record %s, want it as it was", rec)
		}
		client.err = nil
		time.Sleep(2 * time.Minute)
		s.steps(t, 2)
		if rec := wantPhase(t, s.nodes, interruption.Waiting); rec.Replacement == nil || rec.Replacement.State != provisioner.StateUnsupported {
			t.Errorf("record %s, want why the node stays in service", rec)
		}
	})
}
