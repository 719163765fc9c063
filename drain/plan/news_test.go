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
		t.Error("the first count tells nobody")
	}
	if f.count(of); f.told(n) {
		t.Error("planned again without news")
	}
	of.ledger.giveUpSurges("no surge is allowed")
	f.update(of)
	if f.count(of); !f.told(n) {
		t.Error("nobody is told that the Deployment's pods are surged no more")
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
		t.Errorf("%d pods are said to be asked for", of.state.Surging)
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
		t.Error("a pod that is gone, or whose node was cancelled, has taken its turn")
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
		t.Errorf("they are old at %s, want %s", until, waves.Review)
	}
}
