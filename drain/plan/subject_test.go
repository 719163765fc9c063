package plan

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A look-up that fails is made again, and what is known stays known while it is looked up again, however
// often that fails.
func TestLookUps(t *testing.T) {
	f := NewFleet(holding, 32, 1)
	at := now
	f.Apply(at, Set{"node-a", Wanted{NodeState{Taint: taint}, Look}})
	f.Apply(at, PodSeen{Node: "node-a", After: pod("a")})
	f.Apply(at, PodsListed{"node-a"})
	subject := ofNamespace(PreferencesOfNamespace, "shop")
	asked := func(want bool, when string) {
		t.Helper()
		todo := f.Next(at)
		if got := slices.Contains(todo.LookUp, subject); got != want {
			t.Errorf("%s: looked up %t, want %t", when, got, want)
		}
	}
	know := func() bool {
		_, ok := f.nodes["node-a"].sit.Namespaces["shop"]
		return ok
	}
	asked(true, "at first")
	asked(false, "while it is looked up")
	at = at.Add(time.Second)
	f.Apply(at, LookUpFailed{subject})
	asked(false, "just after it has failed")
	at = at.Add(lookupRetry)
	asked(true, "a while after it has failed")
	f.Apply(at, LookedUp{subject, Preferences{When: WhenLast}})
	asked(false, "when it is known")
	if !know() {
		t.Error("not planned with what is known")
	}
	at = at.Add(lookupTTL)
	again := func(change string) {
		f.Apply(at, PodSeen{Node: "node-a", Before: pod("a"), After: pod("a", labelled("news", change))})
	}
	again("1")
	asked(true, "after a while")
	f.Apply(at, LookUpFailed{subject})
	at = at.Add(time.Second)
	again("2")
	asked(false, "just after it has failed again")
	if !know() {
		t.Error("not known any more while it is looked up again")
	}
	at = at.Add(lookupTTL)
	again("3")
	f.Next(at)
	if know() {
		t.Error("still known long after it could not be looked up")
	}
}

// What a watch shows after a node's drain has ended concerns nobody.
func TestEventsOfNobody(t *testing.T) {
	f := NewFleet(holding, 32, 1)
	web := types.NamespacedName{Namespace: "shop", Name: "web"}
	for _, e := range []Event{
		PodSeen{Node: "gone", After: pod("a")}, PodsListed{"gone"}, PodAnswered{"gone", "uid-a", WhenNow}, Remove{"gone"},
		DeploymentSeen{web, nil}, ReplicaSeen{web, nil, ReplicaOf(&corev1.Pod{})}, ReplicasListed{web}, DeploymentUnreadable{web, "no"},
		LookedUp{ofNamespace(PreferencesOfNamespace, "shop"), Preferences{}}, LookUpFailed{ofNamespace(PreferencesOfNamespace, "shop")},
		AttachmentSeen{Name: "va", Node: "gone", Volume: "pv"},
	} {
		f.Apply(now, e)
	}
	if todo := f.Next(now); len(todo.Requests)+len(todo.Watch)+len(todo.LookUp)+len(todo.Changed) > 0 || !todo.Wake.IsZero() {
		t.Errorf("%+v, want nothing to do", todo)
	}
}

// What two nodes' pods share is watched until both have ended.
func TestSharedWatchOutlivesOneDrain(t *testing.T) {
	s := newScene(t, 1, holding)
	s.budgets["web"] = budget("web", 0)
	for _, node := range []string{"node-a", "node-b"} {
		s.add(pod("on-"+node, of("web"), withGrace(30)), "", node, 0)
		s.drain(node, 0, 2*time.Minute)
	}
	s.until(10 * time.Second)
	budgets := ofNamespace(Budgets, "shop")
	s.fleet.Apply(s.now, Remove{"node-a"})
	if todo := s.fleet.Next(s.now); slices.Contains(todo.Unwatch, budgets) || !s.watched[budgets] {
		t.Errorf("unwatched with node-a: %v", todo.Unwatch)
	}
	s.fleet.Apply(s.now, Remove{"node-b"})
	if todo := s.fleet.Next(s.now); !slices.Contains(todo.Unwatch, budgets) {
		t.Errorf("unwatched with node-b: %v", todo.Unwatch)
	}
}

// If a drain ends before its watches have begun, none begins. If it begins again at that moment, its watches start
// again.
func TestWatchesOfAMoment(t *testing.T) {
	f := NewFleet(holding, 32, 1)
	f.Apply(now, Set{"node-a", Wanted{Goal: Cancel}})
	f.Apply(now, Remove{"node-a"})
	if todo := f.Next(now); len(todo.Watch)+len(todo.Unwatch) > 0 {
		t.Errorf("watch %v, unwatch %v; want neither", todo.Watch, todo.Unwatch)
	}
	f.Apply(now, Set{"node-a", Wanted{NodeState{}, Look}})
	f.Next(now)
	f.Apply(now, Remove{"node-a"})
	f.Apply(now, Set{"node-a", Wanted{NodeState{}, Look}})
	if todo := f.Next(now); len(todo.Watch) != 1 || len(todo.Unwatch) != 1 {
		t.Errorf("watch %v, unwatch %v; want the node's pods in both", todo.Watch, todo.Unwatch)
	}
}
