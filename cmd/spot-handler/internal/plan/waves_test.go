package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"spot-handler/drain/plan"
)

// fleet is a Deployment on many nodes of which some are lost at about the same time, each with a
// replacement that boots.
type fleet struct {
	nodes, lost, perNode int
	surge, budget        int // at a time
	boot, ready          time.Duration
	grace                int64
	apart                time.Duration // from one notice to the next
}

func (f fleet) forecast(t *testing.T) Forecast {
	s := newScene(t)
	s.Nodes, s.Lost = nil, nil
	s.Assumptions.Boot, s.Assumptions.Ready = Assume(f.boot, "test"), Assume(f.ready, "test")
	s.deploymentOf("web", int64(f.nodes*f.perNode), int64(f.surge))
	for i := range f.nodes {
		name := fmt.Sprintf("node-%02d", i)
		if i < f.lost {
			s.lose(name, plan.PendingCapacity).after(time.Duration(i) * f.apart)
		} else {
			s.Nodes = append(s.Nodes, aNode(name, fmt.Sprint(f.perNode)))
		}
		s.pods("ReplicaSet", "web", name, f.perNode, graceOf(f.grace))
	}
	s.Assumptions.ReadyOf = map[string]Assumption{"shop/deployment/web": Assume(f.ready, "test")}
	for _, p := range s.Pods {
		p.Status.Conditions[1].LastTransitionTime.Time = p.Status.Conditions[0].LastTransitionTime.Add(f.ready)
	}
	s.budget("web", "web", f.budget)
	return forecastOf(s.Input)
}

// enough reports whether the slots of maxSurge are enough for the pods of the lost nodes to have
// replacement pods in time, each taken again and again as soon as it is free. Evictions under one budget go one by one.
func (f fleet) enough() bool {
	const slack = 3 * time.Second // to see, to schedule, and to count a slot as free
	pods := f.lost * f.perNode
	rounds := (pods + f.surge - 1) / f.surge
	last := time.Duration(f.lost-1)*f.apart + f.boot + time.Duration(rounds)*(f.ready+slack+time.Duration(min(pods, f.surge))*answered)
	return last <= 2*time.Minute-10*time.Second-time.Duration(f.grace)*time.Second
}

func (f fleet) check(t *testing.T) {
	t.Helper()
	got := f.forecast(t)
	if lost := got.Workloads[0].UnavailablePodSeconds; lost != 0 {
		t.Errorf("%+v: %.1f unavailable pod-seconds, %d of %d ready at the worst, at %.1f s", f, lost, got.Workloads[0].FewestReady, got.Workloads[0].Replicas, float64(got.Workloads[0].At))
	}
	for _, p := range got.Pods {
		if p.Outcome != Graceful {
			t.Errorf("%+v: %s", f, say(p))
		}
	}
}

// Half of the nodes are lost at once, as in the benchmark.
func TestSurgeThroughSlots(t *testing.T) {
	for _, lost := range []int{1, 2, 4, 10} {
		nodes := max(4, 2*lost)
		pods := 7 * nodes
		for _, budget := range []int{1, 2, pods / 4} {
			fleet{nodes, lost, 7, pods / 4, budget, 40 * time.Second, 10 * time.Second, 30, 0}.check(t)
		}
	}
}

// Where the slots are enough in time, no pod is missed, whatever the budget.
func TestSurgeThroughSlotsProperty(t *testing.T) {
	r := rand.New(rand.NewPCG(20, 5))
	seconds := func(from, to int) time.Duration { return time.Duration(from+r.IntN(to-from+1)) * time.Second }
	enough := 0
	for range 200 {
		f := fleet{lost: 1 + r.IntN(10), perNode: 1 + r.IntN(8), boot: seconds(5, 60), ready: seconds(1, 20), grace: int64(1 + r.IntN(60)), apart: []time.Duration{0, 0, time.Second, 3 * time.Second}[r.IntN(4)]}
		f.nodes = f.lost + 1 + r.IntN(10)
		pods := f.nodes * f.perNode
		f.surge = max(1, []int{1, 2, pods / 10, pods / 4, pods / 4, pods}[r.IntN(6)])
		f.budget = max(1, []int{1, 1, 2, pods / 10, pods / 4}[r.IntN(5)])
		if f.enough() {
			enough++
			f.check(t)
		}
	}
	if enough < 50 {
		t.Errorf("slots were enough in %d of 200 fleets, too few to show anything", enough)
	}
}
