package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// Pods that are refused count for the only budget that covers them, or for none.
func TestRefusedPodsAreCounted(t *testing.T) {
	f := NewFleet(holding, 32, 1)
	state := NodeState{Taint: taint, Deadline: now.Add(2 * time.Minute), Capacity: ReadyCapacity}
	f.Apply(now, Set{"node-a", Wanted{state, Drain}})
	data := budget("data", 1)
	data.Spec.Selector.MatchLabels = map[string]string{"tier": "data"}
	for _, b := range []string{"web", "db"} {
		f.Apply(now, BudgetSeen{After: budget(b, 1)})
	}
	f.Apply(now, BudgetSeen{After: data})
	f.Apply(now, BudgetsListed{"shop"})
	replies := map[string]Reply{
		"one":     {Outcome: Refused, OfBudget: true},
		"other":   {Outcome: Refused, OfBudget: true},
		"two":     {Outcome: Refused, OfBudget: true},
		"denied":  {Outcome: Refused},
		"failed":  {Outcome: Transient},
		"leaving": {Outcome: Accepted},
	}
	for name := range replies {
		change := labelled("app", map[string]string{"other": "cache"}[name])
		if name != "other" {
			change = labelled("app", "db")
		}
		p := pod(name, change)
		if name == "two" || name == "other" {
			p.Labels["tier"] = "data"
		}
		f.Apply(now, PodSeen{Node: "node-a", After: p})
	}
	f.Apply(now, PodsListed{"node-a"})
	f.Apply(now, LookedUp{ofNamespace(PreferencesOfNamespace, "shop"), Preferences{}})
	for at := now; at.Before(now.Add(5 * time.Second)); at = at.Add(100 * time.Millisecond) {
		todo := f.Next(at)
		for _, s := range todo.LookUp {
			f.Apply(at, LookedUp{s, Preferences{}})
		}
		for _, r := range todo.Requests {
			reply := replies[r.Pod.Name]
			reply.Reason = "no"
			f.Apply(at, Replied{Request: r, Did: r.Action, Reply: reply})
		}
	}
	if diff := cmp.Diff(map[string]int{"shop/db": 1, "shop/data": 1, "": 2}, f.RefusedPods()); diff != "" {
		t.Errorf("refused pods (-want +got):\n%s", diff)
	}
}

func TestOverlongPods(t *testing.T) {
	for _, tt := range []struct {
		name     string
		deadline time.Time
		want     int
	}{
		{"two minutes", now.Add(2 * time.Minute), 1},
		{"heard late: not the pod's fault", now.Add(20 * time.Second), 1},
		{"a window of days", now.Add(48 * time.Hour), 0},
		{"no deadline", time.Time{}, 0},
	} {
		f := NewFleet(holding, 32, 1)
		f.Apply(now, Set{"node-a", Wanted{NodeState{Taint: taint, Deadline: tt.deadline}, Drain}})
		for _, p := range []*corev1.Pod{
			pod("longest", withGrace(110)), pod("too-long", withGrace(111)), pod("daemon", withGrace(600), ownedBy("DaemonSet")),
		} {
			f.Apply(now, PodSeen{Node: "node-a", After: p})
		}
		f.Apply(now, PodsListed{"node-a"})
		f.Next(now)
		if got := f.OverlongPods(); got != tt.want {
			t.Errorf("%s: %d pods, want %d", tt.name, got, tt.want)
		}
	}
}
