package plan

import (
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// waitingFor is a Fleet with a node whose pod's Deployment is watched and counted.
func waitingFor() (*Fleet, *node, *deployment) {
	f := NewFleet(Policy{Strategy: StrategySurge}, 32, 1)
	f.now = now
	n := &node{name: "node-a"}
	f.nodes[n.name] = n
	of := &deployment{
		Subject: Subject{DeploymentOfPod, web}, ledger: newReplicaLedger(), replicas: map[types.UID]*Replica{},
		listed: true, object: deploymentOf(2, nil),
	}
	f.deployments[web] = of
	f.users[of.Subject] = map[*node]struct{}{n: {}}
	return f, n, of
}

func (f *Fleet) told(n *node) bool {
	_, due := f.plans.at[n]
	f.plans.drop(n)
	return due
}

// A request counts a Deployment's pods too. What it finds is still news to the nodes that wait.
func TestRequestHidesNoNews(t *testing.T) {
	f, n, of := waitingFor()
	f.update(of) // for a request
	if f.count(of); !f.told(n) {
		t.Error("the node isn't planned again after the first count")
	}
	if f.count(of); f.told(n) {
		t.Error("planned again without news")
	}
	of.ledger.giveUpSurges("no surge is allowed")
	f.update(of)
	if f.count(of); !f.told(n) {
		t.Error("the node isn't planned again, although the Deployment's pods are no longer surged")
	}
}

// A pod that is surged and put back between two counts takes no slot any more.
func TestSurgedForAMoment(t *testing.T) {
	f, _, of := waitingFor()
	a, surged := webPod("a"), webPod("a", isSurgedPod)
	of.ledger.surging[a.UID] = struct{}{}
	for _, e := range []ReplicaSeen{{web, nil, ReplicaOf(a)}, {web, ReplicaOf(a), ReplicaOf(surged)}, {web, ReplicaOf(surged), ReplicaOf(a)}} {
		f.Apply(now, e)
	}
	if f.count(of); of.state.Surging != 0 {
		t.Errorf("%d pods are still counted as being surged, want 0", of.state.Surging)
	}
}

// What a budget allows is for pods that can still use it.
func TestOnlyPodsThatStayAreWoken(t *testing.T) {
	f := NewFleet(Policy{}, 32, 1)
	f.now = now
	n, canceled := &node{name: "node-a"}, &node{name: "node-b", canceled: true}
	waits := func(name string, on *node, change func(*tracked)) *tracked {
		tr := &tracked{pod: webPod(name), node: on}
		change(tr)
		f.wait(tr, now.Add(time.Minute))
		return tr
	}
	waits("a", n, func(t *tracked) { t.gone = true })
	waits("b", canceled, func(*tracked) {})
	alive := waits("c", n, func(*tracked) {})
	budget := shopBudget("web", 3, 2, 3)
	budget.Status.DisruptionsAllowed = 1
	f.Apply(now, BudgetSeen{After: budget})
	if !alive.woken {
		t.Error("a pod that is gone, or whose node was cancelled, took the waiting pod's turn")
	}
}

// A pod that waits for its turn to be surged is looked at again even if its node was planned before the waves.
func TestWavesAreReviewed(t *testing.T) {
	s := surging(DeploymentState{Selector: labels.Everything(), Slots: 1}, webPod("a", withGrace(30)), webPod("b", withGrace(30)))
	waves := planWaves(now, []Situation{s}, []*policyv1.PodDisruptionBudget{shopBudget("web", 2, 1, 2)})
	if waves.Review.IsZero() {
		t.Fatal("nothing is to be reviewed")
	}
	if until := waves.until(); until.IsZero() || until.After(waves.Review) {
		t.Errorf("the waves go stale at %s, want %s at the latest", until, waves.Review)
	}
}

// A budget that now lets a different number of pods go changes when pods have to go. One that begins or ceases to let
// pods go, or that now selects different pods, changes whether they do.
func TestChangedBudgetIsNews(t *testing.T) {
	of := func(selects string, expected, desired, current int32) *policyv1.PodDisruptionBudget {
		b := shopBudget("web", expected, desired, current)
		b.Spec.Selector.MatchLabels["tier"] = selects
		return b
	}
	for name, tt := range map[string]struct {
		is           *policyv1.PodDisruptionBudget
		waves, plans bool
	}{
		"nothing":               {of("a", 4, 2, 4), false, false},
		"lets three go":         {of("a", 5, 2, 5), true, false},
		"has a broken pod":      {of("a", 4, 2, 3), true, false},
		"lets none go any more": {of("a", 4, 4, 4), true, true},
		"selects others":        {of("b", 4, 2, 4), true, true},
		"is gone":               {nil, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := NewFleet(Policy{}, 32, 1)
			n := &node{name: "node-a"}
			f.users[ofNamespace(Budgets, "shop")] = map[*node]struct{}{n: {}}
			was := of("a", 4, 2, 4)
			f.Apply(now, BudgetSeen{nil, was})
			f.Apply(now, BudgetsListed{"shop"})
			f.told(n)
			f.wavesOld = false
			f.Apply(now, BudgetSeen{was, tt.is})
			if plans := f.told(n); f.wavesOld != tt.waves || plans != tt.plans {
				t.Errorf("waves %t, plans %t; want %t and %t", f.wavesOld, plans, tt.waves, tt.plans)
			}
		})
	}
}

// A request that began when there was time to wait for its answer is cut short when there is less.
func TestEarlierDeadlineHaltsRequests(t *testing.T) {
	f := NewFleet(Policy{}, 32, 1)
	set := func(deadline time.Time) []string {
		f.Apply(now, Set{"node-a", Wanted{NodeState{Deadline: deadline, Since: now}, Drain}})
		return f.Next(now).Halt
	}
	soon, later := now.Add(2*time.Minute), now.Add(3*time.Minute)
	for _, step := range []struct {
		deadline time.Time
		halts    int
	}{{time.Time{}, 0}, {later, 1}, {later, 0}, {soon, 1}, {later, 0}, {time.Time{}, 0}} {
		if halts := set(step.deadline); len(halts) != step.halts {
			t.Errorf("deadline %s: halts %v, want %d", step.deadline, halts, step.halts)
		}
	}
}

// A first look is answered after half a second at the latest, even if the node has been planned again meanwhile.
func TestLookEndsThoughPlannedAgain(t *testing.T) {
	s := newScene(t, 1, Policy{Strategy: StrategySurge})
	s.add(pod("a", withGrace(30)), "", "node-a", 0)
	f := s.fleet
	f.Apply(s.now, Set{"node-a", Wanted{NodeState{Since: s.start}, Look}})
	f.Apply(s.now, PodSeen{Node: "node-a", After: pod("a", withGrace(30))})
	f.Apply(s.now, PodsListed{"node-a"})
	f.Next(s.now)
	if _, ok := f.Status(s.now, "node-a"); ok {
		t.Fatal("an answer, although nothing is known about the pod's budgets")
	}
	known := f.nodes["node-a"].known
	f.Apply(s.now, Set{"node-a", Wanted{NodeState{Since: s.start, Capacity: PendingCapacity}, Look}})
	f.Status(s.now, "node-a")
	if wake := f.Next(s.now).Wake; wake.IsZero() || wake.After(known.Add(lookFor)) {
		t.Errorf("asks again at %s, want %s at the latest", wake, known.Add(lookFor))
	}
}
