package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
)

// underBudget is a node with that many pods, under a budget that allows that many of them to go. Each eviction takes
// that long.
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

// apart is when each eviction began, after the first.
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

// Evictions under one budget run one at a time, but a slow one does not hold up the others until it ends. If the
// budget lets another pod go, that follows as soon as the first is clearly slow, and the rest a moment apart. If not,
// it follows after a while.
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

// A pod that came after its node was marked is held past its wave's turn, until its eviction deadline. It leaves then
// even if nothing else happens.
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

// If the API server takes a second for each request, more are under way at once when pods would otherwise be asked to
// leave late. If there is time for all of them, no more than usual are.
func TestMoreAtOnceWherePodsWouldBeLate(t *testing.T) {
	for left, most := range map[time.Duration]int{52 * time.Second: 28 + 84, 2 * time.Minute: 28} { // see limiter
		s := newScene(t, 1, holding)
		s.takes, s.ready = time.Second, s.start
		for i := range 800 {
			s.add(pod(fmt.Sprint("p", i), withGrace(30)), "", fmt.Sprint("node-", i%10), 0)
		}
		for i := range 10 {
			s.drain(fmt.Sprint("node-", i), 0, left)
		}
		underWay := 0
		for at := 100 * time.Millisecond; at < time.Minute; at += 100 * time.Millisecond {
			s.until(at)
			underWay = max(underWay, len(s.fleet.underWay))
		}
		late := 0
		for _, first := range s.first {
			if first.Sub(s.start) > left-40*time.Second {
				late++
			}
		}
		if underWay != most || late > 0 || len(s.first) != 800 {
			t.Errorf("%v left: %d at once, want %d; %d of %d pods late", left, underWay, most, late, len(s.first))
		}
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

// A budget that is seen late can seem to allow evictions that it refuses. The most urgent pod is
// retried, but not on every change.
func TestMisledPodsPause(t *testing.T) {
	s := newScene(t, 1, holding)
	b := budget("web", 1)
	b.UID, b.Status.DisruptionsAllowed = "web", 0
	s.budgets["web"] = b // as the API server has it
	for i := range 3 {
		s.add(pod(fmt.Sprint(i), of("web")), "web", "node-a", time.Hour)
	}
	s.ready = s.start
	s.drain("node-a", 0, 10*time.Minute)
	const changes = 200
	s.until(10 * time.Second)
	before := len(s.evictions())
	for i := range changes {
		seen := b.DeepCopy()
		seen.Status.DisruptionsAllowed, seen.Generation = 1, int64(i)
		s.fleet.Apply(s.now, BudgetSeen{b, seen})
		s.until(10*time.Second + time.Duration(i)*10*time.Millisecond)
	}
	tries := map[string]int{}
	for _, e := range s.evictions()[before:] {
		tries[strings.Fields(e)[2]]++
	}
	const most = 8
	if tries["0"] < most-2 || tries["0"] > most+2 || tries["1"]+tries["2"] > 6 {
		t.Errorf("tries %v in two seconds, want about %d of the first", tries, most)
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
	surges(t, []string{"a", "b"}, func(s *scene) {}, []string{"a", "b"}, true)
}

// An API server gives an internal error if its etcd is in trouble, but also if a webhook never answers. So the surge is
// tried three times.
func TestSurgeIsTriedAgainAfterAnInternalError(t *testing.T) {
	surges(t, []string{"a"}, func(s *scene) { s.internal = true }, []string{"a", "a", "a"}, true)
	surges(t, []string{"a"}, func(s *scene) { s.internal, s.denials = true, 2 }, []string{"a", "a", "a"}, false)
	surges(t, []string{"a", "b"}, func(s *scene) { s.internal = true }, []string{"a", "b"}, false) // meanwhile, another is
}

// surges drains a node with pods of one Deployment (maxSurge: 1), the first of which can't be surged. It checks which
// surges are attempted, and whether the first pod is held in the end.
func surges(t *testing.T, pods []string, change func(*scene), want []string, held bool) {
	t.Helper()
	s := newScene(t, 1, Policy{Strategy: StrategySurge, Margin: 10 * time.Second})
	s.web("web", len(pods), 1)
	for _, name := range pods {
		s.add(pod(name, of("web"), readyAfter(time.Second), createdAt(s.start.Add(-time.Hour))), "web", "node-a", 0)
	}
	s.ready, s.denied = s.start.Add(time.Hour), pods[0]
	change(s)
	s.drain("node-a", 0, 2*time.Minute)
	s.until(20 * time.Second)
	var surged []string
	for _, r := range s.requests {
		if f := strings.Fields(r); f[1] == string(SurgeNow) {
			surged = append(surged, f[2])
		}
	}
	if !slices.Equal(surged, want) {
		t.Errorf("surged %v, want %v", surged, want)
	}
	for i, name := range pods {
		if why := s.fleet.nodes["node-a"].fixed[types.UID("uid-"+name)]; (why != "") != (held && i == 0) {
			t.Errorf("%s can't be surged because %q", name, why)
		}
	}
}

// A surged pod whose new pod seems to be available is about to be evicted when another one takes that new pod. It waits
// for the next new pod, not for its budget.
func TestNewPodIsGivenToAnother(t *testing.T) {
	for name, budgets := range map[string][]*policyv1.PodDisruptionBudget{"under a budget": {budget("web", 2)}, "under none": nil} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 1, Policy{Strategy: StrategySurge, Margin: 10 * time.Second})
			s.web("web", 2, 2)
			for _, b := range budgets {
				b.UID, b.Status.ExpectedPods, b.Status.DesiredHealthy = "web", 2, 0
				s.budgets["web"] = b
			}
			for _, name := range []string{"a", "b"} {
				s.add(pod(name, of("web"), readyAfter(time.Second), createdAt(s.start.Add(-time.Hour)), withGrace(10)), "web", "node-a", 0)
			}
			s.ready = s.start
			s.drain("node-a", 0, 2*time.Minute)
			s.until(500 * time.Millisecond)
			f := s.fleet
			a := f.nodes["node-a"].tracked["uid-a"]
			if a == nil || !a.surged || a.group == nil || a.group.key.wait != aReplacement {
				t.Fatalf("a: %+v", a)
			}
			stale := f.deployments[a.decision.Deployment]
			stale.state.Evictable = 1
			f.reopen(stale.Name)
			f.try(a) // it joins those that can go
			f.try(a)
			if a.group == nil || a.group.key.wait != aReplacement {
				t.Errorf("a waits in %+v", a.group)
			}
			s.until(100 * time.Second)
			if got := s.evictions(); len(got) != 2 {
				t.Errorf("evicted %v, want both", got)
			}
		})
	}
}
