package plan

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/handler/interruption"
)

// A visit plans once, unless the interruption has changed.
func TestOnePlanForAVisit(t *testing.T) {
	s := newScene(t, 1, holding)
	s.add(pod("a", withGrace(30)), "", "node-a", 0)
	s.drain("node-a", 0, 2*time.Minute)
	s.ready = s.start.Add(time.Hour)
	s.until(5 * time.Second)
	state := s.nodes["node-a"]
	visit := func() Status {
		s.fleet.Apply(s.now, Set{"node-a", Wanted{state, Drain}})
		status, ok := s.fleet.Status(s.now, "node-a")
		if !ok || len(status.Moving) != 1 {
			t.Fatalf("%t, %+v", ok, status)
		}
		return status
	}
	before := visit()
	if after := visit(); &after.Plan[0] != &before.Plan[0] {
		t.Error("planned again")
	}
	s.fleet.Apply(s.now, Set{"node-a", Wanted{NodeState{}, Look}})
	if after := visit(); &after.Plan[0] != &before.Plan[0] {
		t.Error("to look at what is drained already changes its plan")
	}
	state.Capacity = ReadyCapacity
	if after := visit(); &after.Plan[0] == &before.Plan[0] || after.Plan[0].Action != Evict {
		t.Errorf("%s with a replacement that is ready", after.Plan[0].Action)
	}
}

// Of a node that is looked at it is known what is on it, and what would have become of that if it ended now; it isn't
// on its way. Of one whose pods aren't known yet, nothing is.
func TestStatusBeforeTheDrain(t *testing.T) {
	s := newScene(t, 1, holding)
	s.add(pod("a", withGrace(30)), "", "node-a", 0)
	s.add(pod("b", withGrace(30), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: s.start} }), "", "node-a", time.Hour)
	state := NodeState{Deadline: s.start.Add(2 * time.Minute), Since: s.start}
	s.fleet.Apply(s.now, Set{"node-a", Wanted{state, Look}})
	s.until(5 * time.Second)
	status, ok := s.fleet.Status(s.now, "node-a")
	if !ok || len(status.Moving) != 2 || status.Begun || status.Moved || status.Done || !status.Next.IsZero() {
		t.Errorf("%t, %+v", ok, status)
	}
	want := interruption.Pods{Total: 2, Truncated: 1, Left: 1}
	if status.Pods != want || len(status.Left) != 1 || status.Left[0].Pod.Name != "a" {
		t.Errorf("%+v, left %v: want %+v", status.Pods, status.Left, want)
	}
	if n := len(s.requests); n != 0 {
		t.Errorf("%d requests for a node that is looked at", n)
	}
	s.fleet.Apply(s.now, Set{"node-b", Wanted{state, Drain}})
	if status, ok := s.fleet.Status(s.now, "node-b"); ok {
		t.Errorf("status of a node whose pods aren't known: %+v", status)
	}
}

// A node that is only looked at has a good answer once its pods' budgets have been seen and, if they matter, their
// Deployments; after half a second at the latest.
func TestStatusIsGoodOnceAllIsSeen(t *testing.T) {
	surge := holding
	surge.Strategy = StrategySurge
	for name, tt := range map[string]struct {
		policy     Policy
		deployment bool // it is shown
		seen, late bool // whether that is good soon, and half a second later
	}{
		"pods that are held":   {holding, false, true, true},
		"pods that are surged": {surge, true, true, true},
		"and nothing is shown": {surge, false, false, true},
	} {
		f := NewFleet(tt.policy, 32, 1)
		f.Apply(now, Set{"node-a", Wanted{NodeState{Deadline: now.Add(2 * time.Minute), Since: now}, Look}})
		f.Apply(now, PodSeen{Node: "node-a", After: pod("a", of("web"), readyAfter(time.Second))})
		f.Apply(now, PodsListed{"node-a"})
		if f.Next(now); good(f, now) {
			t.Errorf("%s: good before anything else was seen", name)
		}
		f.Apply(now, BudgetsListed{"shop"})
		f.Apply(now, LookedUp{ofNamespace(PreferencesOfNamespace, "shop"), Preferences{}})
		f.Next(now) // it asks for what else there is to know
		f.Apply(now, LookedUp{ofNamespace(ConstraintsOfNamespace, "shop"), NamespaceConstraints{}})
		if tt.deployment {
			f.Apply(now, DeploymentSeen{web, deploymentOf(2, nil)})
			f.Apply(now, ReplicasListed{web})
		}
		soon := now.Add(200 * time.Millisecond) // its pods are counted
		if f.Next(soon); good(f, soon) != tt.seen {
			t.Errorf("%s: good once that was seen: %t, want %t", name, !tt.seen, tt.seen)
		}
		later := now.Add(500 * time.Millisecond)
		if f.Next(later); good(f, later) != tt.late {
			t.Errorf("%s: good half a second later: %t, want %t", name, !tt.late, tt.late)
		}
	}
}

func good(f *Fleet, at time.Time) bool {
	_, ok := f.Status(at, "node-a")
	return ok
}

// A node whose pods have gone waits for their volumes to be detached: for as long as there is time if it has a deadline,
// else for two minutes.
func TestVolumesAreWaitedFor(t *testing.T) {
	for _, deadline := range []time.Time{{}, now.Add(time.Hour)} {
		f := NewFleet(holding, 32, 1)
		p := pod("a", withGrace(30), withClaim("data"))
		see := func(at time.Time, before, after *corev1.Pod) Status {
			f.Apply(at, PodSeen{Node: "node-a", Before: before, After: after})
			f.Apply(at, PodsListed{"node-a"})
			f.Next(at)
			status, _ := f.Status(at, "node-a")
			return status
		}
		f.Apply(now, Set{"node-a", Wanted{NodeState{Deadline: deadline, Since: now, Capacity: ReadyCapacity}, Drain}})
		see(now, nil, p)
		f.Apply(now, AttachmentSeen{Name: "va", Node: "node-a", Volume: "pv"})
		f.Apply(now, AttachmentsListed{})
		gone, waits := now.Add(10*time.Second), 2*time.Minute
		if status := see(gone, p, nil); !status.Moved || status.Done || status.Volumes != 1 {
			t.Errorf("deadline %s: %+v, want it to wait for a volume", deadline, status)
		}
		for i, in := range []time.Duration{waits - time.Second, waits} {
			want := i == 1 && deadline.IsZero()
			f.Next(gone.Add(in))
			if status, _ := f.Status(gone.Add(in), "node-a"); status.Done != want {
				t.Errorf("deadline %s, %s after its last pod: done %t", deadline, in, status.Done)
			}
		}
	}
}

// A pod that has left reappears in a list that comes late. It counts as gone from when it disappears again.
func TestGoneTwice(t *testing.T) {
	f := NewFleet(holding, 32, 1)
	f.Apply(now, Set{"node-a", Wanted{NodeState{Deadline: now.Add(2 * time.Minute), Since: now, Capacity: ReadyCapacity}, Drain}})
	p := pod("a", withGrace(30))
	see := func(at time.Duration, before, after *corev1.Pod) {
		f.Apply(now.Add(at), PodSeen{Node: "node-a", Before: before, After: after})
		f.Apply(now.Add(at), PodsListed{"node-a"})
		f.Next(now.Add(at))
	}
	see(0, nil, p)
	see(5*time.Second, p, nil)
	see(10*time.Second, nil, p)
	see(15*time.Second, p, nil)
	if got := f.nodes["node-a"].tracked[p.UID].goneAt.Sub(now); got != 15*time.Second {
		t.Errorf("gone after %v, want 15s", got)
	}
}

// A cancelled drain is over once nothing is under way and its surged pods are back; that is tried until it succeeds.
func TestCanceled(t *testing.T) {
	f := NewFleet(holding, 32, 1)
	f.Apply(now, Set{"node-a", Wanted{NodeState{Taint: taint, Deadline: now.Add(time.Minute), Capacity: PendingCapacity}, Drain}})
	f.Apply(now, Set{"node-a", Wanted{Goal: Cancel}})
	canceled := func(at time.Time) *Canceled {
		t.Helper()
		status, known := f.Status(at, "node-a")
		if known && status.Canceled == nil && f.nodes["node-a"].returned {
			t.Error("not over, though its pods are back")
		}
		return status.Canceled
	}
	if todo := f.Next(now); len(todo.PutBack) != 0 || canceled(now) != nil {
		t.Fatalf("puts back the pods of %v before they are known", todo.PutBack)
	}
	f.Apply(now, PodSeen{Node: "node-a", After: pod("a")})
	f.Apply(now, PodsListed{"node-a"})
	if todo := f.Next(now); !slices.Equal(todo.PutBack, []string{"node-a"}) {
		t.Fatalf("puts back the pods of %v", todo.PutBack)
	}
	f.Apply(now, PodsListed{"node-a"}) // listed again: it is under way
	if todo := f.Next(now); len(todo.PutBack) != 0 || canceled(now) != nil {
		t.Fatalf("puts back the pods of %v twice", todo.PutBack)
	}
	f.Apply(now, PutBack{Node: "node-a", Failed: true})
	later := now.Add(time.Second)
	if todo := f.Next(later.Add(-1)); len(todo.PutBack) != 0 || !todo.Wake.Equal(later) {
		t.Errorf("tries again %v, wakes at %s; want a second later", todo.PutBack, todo.Wake.Sub(now))
	}
	if todo := f.Next(later); !slices.Equal(todo.PutBack, []string{"node-a"}) || canceled(later) != nil {
		t.Fatalf("puts back the pods of %v", todo.PutBack)
	}
	f.Apply(later, PutBack{Node: "node-a"})
	if todo := f.Next(later); !slices.Equal(todo.Changed, []string{"node-a"}) {
		t.Errorf("%v changed", todo.Changed)
	}
	if left := canceled(later); left == nil || len(left.Staying) != 1 || left.Pods != (interruption.Pods{}) {
		t.Errorf("%+v, want one pod to stay", left)
	}
}

// Nothing is kept of drains that have ended.
func TestNothingIsKept(t *testing.T) {
	for seed := range uint64(50) {
		s := randomScene(t, seed)
		s.until(time.Duration(seed) * 2 * time.Second)
		for name := range s.nodes {
			s.fleet.Apply(s.now, Set{name, Wanted{Goal: Cancel}})
			s.fleet.Apply(s.now, Remove{name})
		}
		requests := len(s.requests)
		s.over = true
		s.until(time.Hour)
		f := s.fleet
		kept := map[string]int{
			"nodes": len(f.nodes), "users": len(f.users), "budgets": len(f.budgets), "deployments": len(f.deployments), "groups": len(f.groups),
			"waiting": len(f.waiting), "seats": len(f.limiter.seats), "gangs": len(f.gangs.of), "sent": len(f.sent), "under way": len(f.underWay),
			"plans": len(f.plans.at), "recounts": len(f.recounts.at), "retries": len(f.retries.at), "returns": len(f.returns.at), "watched": len(s.watched),
		}
		for what, n := range kept {
			if n > 0 {
				t.Errorf("seed %d: %d %s", seed, n, what)
			}
		}
		if len(s.requests) > requests {
			t.Errorf("seed %d: %v after the drains have ended", seed, s.requests[requests:])
		}
		if t.Failed() {
			return
		}
	}
}

// A node has its plan once its pods are known, and is said to have one only if pods leave by it: the watch of a node
// without any keeps its place, as it ends in a moment.
func TestPlannedIsWhatPodsLeaveBy(t *testing.T) {
	for name, tt := range map[string]struct {
		pods []*corev1.Pod
		want []string
	}{
		"no pod":               {nil, nil},
		"one that leaves":      {[]*corev1.Pod{pod("a")}, []string{"node-a"}},
		"one of a DaemonSet's": {[]*corev1.Pod{pod("a", ownedBy("DaemonSet"))}, nil},
	} {
		f := NewFleet(holding, 32, 1)
		f.Apply(now, Set{"node-a", Wanted{NodeState{Deadline: now.Add(2 * time.Minute), Since: now}, Look}})
		for _, p := range tt.pods {
			f.Apply(now, PodSeen{Node: "node-a", After: p})
		}
		f.Apply(now, PodsListed{"node-a"})
		planned := f.Next(now).Planned
		if !slices.Equal(planned, tt.want) {
			t.Errorf("%s: planned %q, want %q", name, planned, tt.want)
		}
		if status, _ := f.Status(now, "node-a"); len(status.Moving) != len(tt.want) {
			t.Errorf("%s: %d pods leave, want %d", name, len(status.Moving), len(tt.want))
		}
	}
}
