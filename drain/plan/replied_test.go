package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An eviction was granted, and the pod's watch shows the pod as it was, also in a list that comes later: it
// is not evicted again. Nor is it if the node's drain ends and begins again before its watch has caught up.
func TestGrantedOnce(t *testing.T) {
	s := newScene(t, 1, holding)
	s.add(pod("a", withGrace(30)), "", "node-a", time.Hour)
	s.watches = time.Hour // it shows nothing of its own
	s.ready = s.start
	s.drain("node-a", 0, 2*time.Minute)
	p := s.pods["uid-a"].Pod
	s.watched[podsOf("node-a")] = true
	s.until(time.Second)
	s.fleet.Apply(s.now, PodSeen{Node: "node-a", After: p})
	s.fleet.Apply(s.now, PodsListed{"node-a"})
	s.until(2 * time.Second)
	if n := len(s.evictions()); n != 1 {
		t.Fatalf("%d evictions, want 1", n)
	}
	older := p.DeepCopy()
	older.Labels = map[string]string{"news": "old"}
	s.fleet.Apply(s.now, PodSeen{Node: "node-a", Before: p, After: older})
	s.until(10 * time.Second)
	s.fleet.Apply(s.now, PodSeen{Node: "node-a", Before: older, After: p}) // a list after a gap
	s.until(20 * time.Second)
	s.fleet.Apply(s.now, Remove{"node-a"})
	s.drain("node-a", 0, time.Minute)
	s.until(21 * time.Second)
	s.fleet.Apply(s.now, PodSeen{Node: "node-a", After: p})
	s.fleet.Apply(s.now, PodsListed{"node-a"})
	s.until(30 * time.Second)
	if n := len(s.evictions()); n != 1 {
		t.Errorf("%v, want one", s.evictions())
	}
}

// A node's drain ends while an eviction is under way, and begins again: the pod is not evicted beside it, nor
// once that is granted. If it fails, the pod is evicted again.
func TestDrainedAgainWhileARequestIsUnderWay(t *testing.T) {
	for outcome, want := range map[Outcome]int{Accepted: 0, Transient: 1} {
		f := NewFleet(holding, 32, 1)
		begin := func() {
			f.Apply(now, Set{"node-a", Wanted{NodeState{Taint: taint, Deadline: now.Add(time.Minute), Capacity: ReadyCapacity}, Drain}})
			f.Apply(now, PodSeen{Node: "node-a", After: pod("a")})
			f.Apply(now, PodsListed{"node-a"})
			f.Next(now)
			f.Apply(now, LookedUp{ofNamespace(PreferencesOfNamespace, "shop"), Preferences{}})
		}
		begin()
		first := f.Next(now).Requests
		f.Apply(now, Remove{"node-a"})
		begin()
		if again := f.Next(now).Requests; len(first) != 1 || len(again) != 0 {
			t.Errorf("%d requests, and %d while the first is under way; want the one", len(first), len(again))
		}
		f.Apply(now, Replied{Request: first[0], Did: Evict, Reply: Reply{Outcome: outcome}})
		if after := f.Next(now).Requests; len(after) != want {
			t.Errorf("%d requests after outcome %d, want %d", len(after), outcome, want)
		}
	}
}

// An API server that turns requests away gets fewer; one whose budgets or webhooks refuse them gets as many.
func TestWhoSlowsRequestsDown(t *testing.T) {
	for name, tt := range map[string]struct {
		reply Reply
		want  int
	}{
		"busy":    {Reply{Outcome: Transient, Status: 429}, 16},
		"fails":   {Reply{Outcome: Transient, Status: 503}, 32},
		"refuses": {Reply{Outcome: Refused, Status: 429}, 32},
	} {
		f := NewFleet(holding, 32, 1)
		f.Apply(now, Set{"node-a", Wanted{NodeState{Taint: taint, Deadline: now.Add(time.Minute), Capacity: ReadyCapacity}, Drain}})
		f.Apply(now, PodSeen{Node: "node-a", After: pod("a")})
		f.Apply(now, PodsListed{"node-a"})
		f.Next(now)
		f.Apply(now, LookedUp{ofNamespace(PreferencesOfNamespace, "shop"), Preferences{}})
		todo := f.Next(now)
		if len(todo.Requests) != 1 {
			t.Fatalf("%s: %d requests, want 1", name, len(todo.Requests))
		}
		f.Apply(now, Replied{Request: todo.Requests[0], Did: Evict, Reply: tt.reply})
		if f.limiter.limit != tt.want {
			t.Errorf("%s: %d requests at once, want %d", name, f.limiter.limit, tt.want)
		}
	}
}

// A new pod with the same name, such as a StatefulSet makes, is not the one that was sent away.
func TestAnotherPodOfItsName(t *testing.T) {
	s := newScene(t, 1, holding)
	s.add(pod("db-0"), "", "node-a", 5*time.Second)
	s.ready = s.start
	s.drain("node-a", 0, 2*time.Minute)
	s.until(10 * time.Second)
	again := pod("db-0", func(p *corev1.Pod) { p.UID = "another" }, createdAt(s.start.Add(-time.Hour)))
	s.add(again, "", "node-a", time.Hour)
	s.fleet.Apply(s.now, PodSeen{Node: "node-a", After: again})
	s.until(20 * time.Second)
	if s.evicted["uid-db-0"] != 1 || s.evicted["another"] != 1 {
		t.Errorf("evicted %v, want each once", s.evicted)
	}
}

// An eviction was granted, and its answer got lost. The pod's watch shows that a second later, and it is not
// evicted again. If it shows nothing, it is.
func TestLostAnswer(t *testing.T) {
	for shown, want := range map[bool]int{true: 1, false: 2} {
		s := newScene(t, 1, holding)
		s.add(pod("a", withGrace(30)), "", "node-a", time.Hour)
		s.ready, s.lost = s.start, true
		s.drain("node-a", 0, 2*time.Minute)
		s.until(time.Second)
		if n := len(s.evictions()); n != 1 {
			t.Fatalf("%d evictions, want 1", n)
		}
		s.until(2 * time.Second)
		p := s.pods["uid-a"]
		if shown {
			s.change(p, func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: s.now.Add(30 * time.Second)} })
		}
		s.lost = false
		s.until(20 * time.Second)
		if n := len(s.evictions()); n != want {
			t.Errorf("%v if the watch shows it: %t, want %d", s.evictions(), shown, want)
		}
	}
}
