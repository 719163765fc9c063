package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/handler/interruption"
)

var holding = Policy{Strategy: StrategyHold, Blocked: Leave, Margin: 10 * time.Second}

// evictions are the requests for evictions so far.
func (s *scene) evictions() (list []string) {
	for _, r := range s.requests {
		if strings.Contains(r, " evict ") {
			list = append(list, r)
		}
	}
	return list
}

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

// underBudget is a node with so many pods, under a budget that lets so many of them go. Each eviction takes so
// long.
func underBudget(t *testing.T, pods, allowed int, takes time.Duration) *scene {
	s := newScene(t, 1, holding)
	b := budget("web", int32(allowed))
	b.UID, b.Status.ExpectedPods, b.Status.DesiredHealthy = "web", int32(max(pods, 10)+10), int32(max(pods, 10)+10-allowed)
	s.budgets["web"] = b
	for i := range pods {
		s.add(pod(fmt.Sprintf("p%03d", i), of("web"), withGrace(30)), "", "node-a", 0)
	}
	s.takes, s.ready = takes, s.start
	s.drain("node-a", 0, 2*time.Minute)
	return s
}

// startedAt is when each eviction began, after the first.
func (s *scene) apart(t *testing.T) (list []time.Duration) {
	for _, e := range s.evictions() {
		at, err := time.ParseDuration(strings.Fields(e)[0])
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, at)
	}
	for i := len(list) - 1; i >= 0; i-- {
		list[i] -= list[0]
	}
	return list
}

// One eviction under a budget at a time. One that takes its time does not hold up the others for all of it:
// where the budget lets another go, that follows as soon as it is clear that it is slow, and the rest a moment
// apart; where not, after a while.
func TestSlowEvictionsUnderABudget(t *testing.T) {
	ms := time.Millisecond
	for _, tt := range []struct {
		allowed int
		takes   time.Duration
		want    []time.Duration
	}{
		{9, 20 * ms, []time.Duration{0, 20 * ms, 40 * ms, 60 * ms, 80 * ms}},
		{1, time.Minute, []time.Duration{0, 250 * ms, 500 * ms, 750 * ms, 1000 * ms}},
		{3, time.Minute, []time.Duration{0, 50 * ms, 100 * ms, 350 * ms, 600 * ms}},
		{9, time.Minute, []time.Duration{0, 50 * ms, 100 * ms, 150 * ms, 200 * ms}},
	} {
		t.Run(fmt.Sprint(tt.allowed, " ", tt.takes), func(t *testing.T) {
			s := underBudget(t, len(tt.want), tt.allowed, tt.takes)
			s.until(20 * time.Second)
			if got := s.apart(t); !slices.Equal(got, tt.want) {
				t.Errorf("evictions begin %s apart from the first, want %s", got, tt.want)
			}
		})
	}
}

// A pod that has come since its node was marked is held past its wave's turn, until its eviction deadline. Nothing else
// has to happen for it to leave then.
func TestHeldPastItsWave(t *testing.T) {
	s := underBudget(t, 0, 1, 20*time.Millisecond)
	for _, node := range []string{"node-b", "node-c", "node-d"} {
		s.add(pod("on-"+node, of("web"), withGrace(30), createdAt(s.start.Add(time.Second))), "", node, 0)
		s.drain(node, 0, 2*time.Minute)
	}
	s.until(82 * time.Second)
	if got := s.evictions(); len(got) != 3 || !strings.HasPrefix(got[0], "1m20") {
		t.Errorf("%q; want all three at their eviction deadline, after 80 s", got)
	}
}

// The most urgent pod goes first, whatever node it is on; among equals one with volumes, which takes longer in
// the end. A deadline that comes nearer changes that.
func TestMostUrgentFirst(t *testing.T) {
	s := newScene(t, 1, holding)
	s.fleet.limiter = newLimiter(1)
	s.takes, s.ready = 100*time.Millisecond, s.start.Add(time.Second)
	s.add(pod("late", withGrace(10)), "", "node-a", 0)
	s.add(pod("soon", withGrace(60)), "", "node-a", 0)
	s.add(pod("data", withGrace(10), withClaim("data")), "", "node-a", 0)
	s.add(pod("first", withGrace(10)), "", "node-b", 0)
	s.add(pod("never", withGrace(10)), "", "node-c", 0)
	s.drain("node-a", 0, 2*time.Minute)
	s.drain("node-b", 0, time.Minute)
	s.drain("node-c", 0, 0)
	s.until(10 * time.Second)
	var got []string
	for _, e := range s.evictions() {
		got = append(got, strings.Fields(e)[2])
	}
	if want := []string{"first", "soon", "data", "late", "never"}; !slices.Equal(got, want) {
		t.Errorf("evicted %v, want %v", got, want)
	}
}

// Refused pods try again as soon as their budget lets them: as many as it lets go, the most urgent first.
func TestRefusedPodsWakeWithTheirBudget(t *testing.T) {
	s := newScene(t, 1, holding)
	b := budget("web", 2)
	b.UID, b.Status.DisruptionsAllowed = "web", 0
	s.budgets["web"] = b
	s.ready = s.start
	for i, grace := range []int64{10, 40, 30, 20} {
		s.add(pod(fmt.Sprint(i), of("web"), withGrace(grace)), "web", "node-a", time.Hour)
	}
	s.drain("node-a", 0, 10*time.Minute)
	s.until(30 * time.Second)
	before := len(s.evictions())
	if before < 8 || before > 80 {
		t.Errorf("%d attempts in half a minute, want some of each, with backoff", before)
	}
	allowed := b.DeepCopy()
	allowed.Status.DisruptionsAllowed = 2
	s.fleet.Apply(s.now, BudgetSeen{b, allowed})
	s.budgets["web"] = allowed
	woken := len(s.evictions())
	s.until(30*time.Second + 20*time.Millisecond)
	got := s.evictions()[woken:]
	if len(got) < 1 || !strings.HasSuffix(got[0], " 1") {
		t.Errorf("%v when the budget lets two go, want the most urgent at once", got)
	}
}

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

// What is known of a node that is looked at is good for an answer once its pods' budgets are seen and, where that
// counts, their Deployments; at the latest after half a second.
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

// A pod that has left is back in a list that comes late, and has gone when that is over: since then.
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

// The most urgent pod goes first, whatever it and the others wait for besides.
func TestMostUrgentOfAllGroups(t *testing.T) {
	for range 20 { // the groups are in no order
		s := underBudget(t, 1, 9, 100*time.Millisecond)
		s.fleet.limiter = newLimiter(1)
		for i, namespace := range []string{"a", "b", "c", "d"} {
			s.add(pod("in-"+namespace, inNamespace(namespace), withGrace(int64(80-10*i))), "", "node-a", 0)
		}
		s.until(10 * time.Second)
		var got []string
		for _, e := range s.evictions() {
			got = append(got, strings.Fields(e)[2])
		}
		if want := []string{"in-a", "in-b", "in-c", "in-d", "p000"}; !slices.Equal(got, want) {
			t.Fatalf("evicted %v, want %v", got, want)
		}
	}
}

// A surge that is denied gives its turn to another pod.
func TestDeniedSurgeGivesItsTurn(t *testing.T) {
	s := newScene(t, 1, Policy{Strategy: StrategySurge, Margin: 10 * time.Second})
	s.web("web", 2, 1)
	for _, name := range []string{"a", "b"} {
		s.add(pod(name, of("web"), readyAfter(time.Second), createdAt(s.start.Add(-time.Hour))), "web", "node-a", 0)
	}
	s.ready, s.denied = s.start.Add(time.Hour), "a"
	s.drain("node-a", 0, 2*time.Minute)
	s.until(20 * time.Second)
	var surged []string
	for _, r := range s.requests {
		if f := strings.Fields(r); f[1] == string(SurgeNow) {
			surged = append(surged, f[2])
		}
	}
	if want := []string{"a", "b"}; !slices.Equal(surged, want) {
		t.Errorf("surged %v, want each once", surged)
	}
	if why := s.fleet.nodes["node-a"].fixed["uid-a"]; why == "" || s.fleet.nodes["node-a"].fixed["uid-b"] != "" {
		t.Errorf("a cannot be surged because %q", why)
	}
}

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

// Another pod of a name, as a StatefulSet makes it, is not the one that was sent away.
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

// A drain that ends before its watches have begun has none begin. One that begins again in that moment has its
// watches start again.
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
