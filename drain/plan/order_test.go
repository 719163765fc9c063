package plan

import (
	"fmt"
	"testing"
	"time"
)

// After the same events the Fleet says the same in the same order, as a simulator that plays a seed again expects.
func TestSameOrder(t *testing.T) {
	play := func() (said string) {
		f := NewFleet(Policy{Strategy: StrategySurge, Margin: 10 * time.Second}, 32, 1)
		next := func(at time.Time) {
			todo := f.Next(at)
			said += fmt.Sprintln(todo.Unwatch, todo.Watch, todo.LookUp, todo.Planned, todo.Halt, todo.Changed)
			for _, r := range todo.Requests {
				said += fmt.Sprintln(r.Action, r.Pod.UID)
			}
			for _, r := range todo.Reports {
				said += fmt.Sprintln(r.Kind, r.Node, r.Pod.UID)
			}
		}
		for i := range 10 {
			node := fmt.Sprint("node-", i)
			f.Apply(now, Set{node, Wanted{NodeState{Taint: taint, Deadline: now.Add(2 * time.Minute), Capacity: PendingCapacity}, Drain}})
			for j := range 10 {
				p := pod(fmt.Sprintf("p%d-%d", i, j), ownedBy("ReplicaSet"))
				p.Spec.NodeName = node
				p.Namespace = fmt.Sprint("team-", j%5)
				f.Apply(now, PodSeen{Node: node, After: p})
			}
		}
		for i := range 10 {
			f.Apply(now, PodsListed{fmt.Sprint("node-", i)})
		}
		next(now)
		for j := range 5 {
			f.Apply(now, LookedUp{ofNamespace(PreferencesOfNamespace, fmt.Sprint("team-", j)), Preferences{When: "soon"}})
		}
		next(now)
		next(now.Add(20 * time.Second))
		next(now.Add(118 * time.Second))
		for i := range 10 {
			node := fmt.Sprint("node-", i)
			status, _ := f.Status(now.Add(119*time.Second), node)
			for _, l := range status.Left {
				said += fmt.Sprintln("left", l.Pod.UID)
			}
			f.Apply(now.Add(119*time.Second), Remove{node})
		}
		next(now.Add(2 * time.Minute))
		return said
	}
	first := play()
	for range 10 {
		if again := play(); again != first {
			t.Fatalf("once:\n%s\nand another time:\n%s", first, again)
		}
	}
}
