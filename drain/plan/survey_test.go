package plan

import (
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// survey surveys the scene's node-0, which ends in two minutes.
func (s *scene) survey(t *testing.T) (map[types.UID]Decision, NodeState) {
	t.Helper()
	in := NodeState{Taint: taint, Since: s.now, Deadline: s.now.Add(2 * time.Minute), Capacity: PendingCapacity}
	survey, err := NewSurvey(s.now, s.policy, "node-0", in, func(of Subject) ([]Event, error) { return s.all(of), nil })
	if err != nil {
		t.Fatal(err)
	}
	view, known := survey.View(s.now, Wanted{in, Drain})
	if !known {
		t.Fatal("its pods are not known")
	}
	decisions := map[types.UID]Decision{}
	for _, d := range view.Plan {
		decisions[d.Pod.UID] = d
	}
	return decisions, in
}

// What a survey says of a pod is what a drain does about it, whatever pods there are.
func TestSurveySaysWhatADrainDoes(t *testing.T) {
	done := map[Action]int{}
	for seed := range uint64(300) {
		s := randomScene(t, seed)
		said, in := s.survey(t)
		f := NewFleet(s.policy, 1000, seed)
		f.Apply(s.now, Set{"node-0", Wanted{in, Look}})
		for end, draining := s.now.Add(900*time.Millisecond), false; ; {
			todo := f.Next(s.now)
			for _, of := range slices.Concat(todo.Watch, todo.LookUp) {
				for _, e := range s.all(of) {
					f.Apply(s.now, e)
				}
			}
			for _, r := range todo.Requests {
				done[r.Action]++
				d := said[r.Pod.UID]
				if d.Action != r.Action || d.Reason != r.Reason || !d.At.Equal(r.At) {
					t.Errorf("seed %d, %s: a drain does %s (%s) by %s, and the survey says %s (%s) by %s",
						seed, r.Pod.Name, r.Action, r.Reason, r.At, d.Action, d.Reason, d.At)
				}
				delete(said, r.Pod.UID)
			}
			if _, known := f.Status(s.now, "node-0"); known && !draining {
				draining = true
				f.Apply(s.now, Set{"node-0", Wanted{in, Drain}})
				continue
			}
			if len(todo.Watch)+len(todo.LookUp) > 0 {
				continue
			}
			if todo.Wake.IsZero() || todo.Wake.After(end) {
				break
			}
			if todo.Wake.After(s.now) {
				s.now = todo.Wake
			}
		}
		for _, d := range said { // evictions under one budget follow each other, and none is answered here
			if d.Action == SurgeNow || d.Action == Evict && len(f.budgetsOf(d.Pod)) == 0 {
				t.Errorf("seed %d, %s: the survey says %s (%s), and a drain doesn't", seed, d.Pod.Name, d.Action, d.Reason)
			}
		}
	}
	if done[Evict] < 100 || done[SurgeNow] < 100 {
		t.Errorf("%v: this shows little", done)
	}
}

// Pods that can only go in waves are surveyed with the time of their wave.
func TestSurveyHasWaves(t *testing.T) {
	s := newScene(t, 1, holding)
	b := budget("web", 1)
	s.budgets["web"] = b
	for _, name := range []string{"a", "b", "c"} {
		s.add(pod(name, of("web"), withGrace(30), readyAfter(5*time.Second)), "", "node-0", time.Minute)
	}
	said, in := s.survey(t)
	latest, early := in.Deadline.Add(-40*time.Second), 0
	for _, d := range said {
		if d.At.Before(latest) {
			early++
		}
	}
	if early != 2 {
		t.Errorf("%d of three pods go before %s, want two", early, latest)
	}
}

// If something could not be read, a survey knows the rest. If it's the node's pods, it knows nothing.
func TestSurveyOfWhatCouldBeRead(t *testing.T) {
	away := errors.New("away")
	in := NodeState{Taint: taint, Deadline: now.Add(time.Second), Capacity: PendingCapacity}
	for kind, want := range map[Kind]bool{PodsOfNode: false, Budgets: true, PreferencesOfNamespace: true} {
		survey, err := NewSurvey(now, holding, "node-0", in, func(of Subject) ([]Event, error) {
			switch of.Kind {
			case kind:
				return nil, away
			case PodsOfNode:
				return AllPods("node-0", []*corev1.Pod{pod("a")}), nil
			}
			return nil, nil
		})
		if !errors.Is(err, away) {
			t.Errorf("without %s: error %v, want %v", kind, err, away)
		}
		if view, known := survey.View(now, Wanted{in, Drain}); known != want || want && len(view.Plan) != 1 {
			t.Errorf("without %s: pods known: %t, want %t; %d decisions", kind, known, want, len(view.Plan))
		}
	}
}

// A refused pod whose deadline has come is deleted, if that was asked for; nothing that can be read says that it was
// refused.
func TestSurveyOfARefusedPod(t *testing.T) {
	in := NodeState{Taint: taint, Deadline: now.Add(20 * time.Second), Capacity: PendingCapacity}
	survey, err := NewSurvey(now, Policy{Strategy: StrategyHold, Blocked: Delete, Margin: 10 * time.Second}, "node-0", in, func(of Subject) ([]Event, error) {
		switch of.Kind {
		case PodsOfNode:
			return AllPods("node-0", []*corev1.Pod{pod("a", withGrace(30)), pod("b", withGrace(30))}), nil
		case PreferencesOfNamespace:
			return []Event{LookedUp{of, Preferences{}}}, nil
		}
		return []Event{BudgetsListed{of.Name.Namespace}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	survey.View(now, Wanted{in, Look})
	survey.Refused("uid-a")
	view, _ := survey.View(now, Wanted{in, Drain})
	if got := actions(view.Plan); got != "a delete, b evict" {
		t.Error(got)
	}
}
