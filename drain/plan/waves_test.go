package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Seven pods under a budget of one, each 20 s to become Ready: the first goes six cycles
// before the latest start of the last.
func TestWaves(t *testing.T) {
	s := surging(DeploymentState{})
	s.Policy.Strategy = StrategyHold
	s.Budgets = []*policyv1.PodDisruptionBudget{budget("web", 1)}
	s.Deadline = now.Add(10 * time.Minute)
	for i := range 7 {
		s.Pods = append(s.Pods, pod(fmt.Sprint("p", i), of("web"), readyAfter(20*time.Second)))
	}
	s.Waves = planWaves(now, []Situation{s}, s.Budgets)
	plan := Plan(now, s)
	latest := s.Deadline.Add(-40 * time.Second) // margin and grace period
	for i, d := range plan {
		if want := latest.Add(-time.Duration(6-i) * (20*time.Second + turnaround)); !d.At.Equal(want) {
			t.Errorf("wave %d starts at %s, want %s", i+1, d.At.Sub(now), want.Sub(now))
		}
	}
	first := plan[0].At
	if got := Plan(first, s)[0]; got.Action != Evict {
		t.Errorf("when its wave has come: %s, want evict", got.Action)
	}
	if got := Plan(first, s)[1]; got.Action != Hold {
		t.Errorf("the next wave: %s, want hold", got.Action)
	}
	s.Budgets[0].Status.DesiredHealthy = 10 // lets none go: waves are of no use
	if got := planWaves(now, []Situation{s}, s.Budgets).Starts; len(got) != 0 {
		t.Errorf("waves under a budget that lets none go: %v", got)
	}
}

// Pods that are leaving, and those that never will, have no wave: the others' begin as if they weren't there.
func TestNoWaveForWhatDoesNotLeave(t *testing.T) {
	s := surging(DeploymentState{})
	s.Policy.Strategy = StrategyHold
	s.Budgets = []*policyv1.PodDisruptionBudget{budget("web", 1)}
	s.Deadline = now.Add(10 * time.Minute)
	for i := range 3 {
		s.Pods = append(s.Pods, pod(fmt.Sprint("p", i), of("web"), readyAfter(20*time.Second)))
	}
	want := planWaves(now, []Situation{s}, s.Budgets).Starts
	s.Pods = append(s.Pods,
		pod("leaving", of("web"), readyAfter(20*time.Second), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }),
		pod("static", of("web"), readyAfter(20*time.Second), annotated(corev1.MirrorPodAnnotationKey, "x")),
		pod("over", of("web"), readyAfter(20*time.Second), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	got := planWaves(now, []Situation{s}, s.Budgets).Starts
	if diff := cmp.Diff(want, got); diff != "" || len(want) != 3 {
		t.Errorf("starts of %d pods (-want +got):\n%s", len(want), diff)
	}
}

// Pods that are being surged hold their turns before the watches show it: none of them, and none that
// follows, is taken for one whose turn comes too late.
func TestTurnsUnderWay(t *testing.T) {
	s := surging(DeploymentState{Surging: 2})
	s.Budgets = []*policyv1.PodDisruptionBudget{budget("web", 1)}
	s.Deadline = now.Add(2 * time.Minute)
	for i := range 4 {
		s.Pods = append(s.Pods, webPod(fmt.Sprint("p", i), readyAfter(2*time.Second)))
	}
	if got := planWaves(now, []Situation{s}, s.Budgets).Starts; len(got) != 0 {
		t.Errorf("waves of pods with turns: %v", got)
	}
	s.Deployments[web] = DeploymentState{Selector: s.Deployments[web].Selector}
	if got := planWaves(now, []Situation{s}, s.Budgets).Starts; len(got) != 4 {
		t.Errorf("waves of %d pods without any turn, want 4", len(got))
	}
}

// A turn is in use until the replacement pod can be Ready, counted from when it can have a node. As long as the
// replacement node boots, that is now. A node without a deadline gets no turn before those that have one.
func TestTurnsInUse(t *testing.T) {
	surged := func(ago time.Duration) *corev1.Pod {
		p := webPod("surged", readyAfter(20*time.Second))
		return AsSurged(p, now.Add(-ago))
	}
	for name, tt := range map[string]struct {
		surged      time.Duration // how long ago
		capacity    Capacity
		ready       time.Duration // how long ago
		latest      time.Duration // from now
		late, never bool
	}{
		"it began long ago":                  {15 * time.Second, ReadyCapacity, 15 * time.Second, 30 * time.Second, false, false},
		"the replacement became Ready later": {15 * time.Second, ReadyCapacity, 5 * time.Second, 30 * time.Second, true, false},
		"it was surged after that":           {5 * time.Second, ReadyCapacity, 15 * time.Second, 30 * time.Second, true, false},
		"the replacement boots":              {15 * time.Second, PendingCapacity, 0, 30 * time.Second, true, false},
		"and there is time":                  {15 * time.Second, PendingCapacity, 0, 45 * time.Second, false, false},
		"the one that waits is only at risk": {5 * time.Second, ReadyCapacity, 15 * time.Second, 0, false, true},
	} {
		s := surging(DeploymentState{}, surged(tt.surged))
		s.Capacity, s.Ready = tt.capacity, now.Add(-tt.ready)
		s.Deadline = now.Add(30*time.Second + s.Policy.Margin + tt.latest)
		if tt.never {
			s.Deadline = time.Time{}
		}
		s.Pods = append(s.Pods, webPod("waits", withGrace(30), readyAfter(20*time.Second)))
		if late, _ := podsInWaves(now, []Situation{s}); len(late) > 0 != tt.late {
			t.Errorf("%s: %d pods' turns come too late, want one: %t", name, len(late), tt.late)
		}
	}
}

// Which pods of a budget go first does not change when the waves are known, whatever their UIDs are.
func TestWavesKeepTheOrder(t *testing.T) {
	s := surging(DeploymentState{})
	s.Policy.Strategy = StrategyHold
	s.Budgets = []*policyv1.PodDisruptionBudget{budget("web", 2)}
	for i := range 6 {
		p := pod(fmt.Sprint("p", i), of("web"), readyAfter(8*time.Second))
		p.UID = types.UID(fmt.Sprint("uid-", 9-i))
		s.Pods = append(s.Pods, p)
	}
	order := func() (names []string) {
		for _, d := range slices.SortedFunc(slices.Values(Plan(now, s)), func(a, b Decision) int { return precedes(a.due(), a.Pod, b.due(), b.Pod) }) {
			names = append(names, d.Pod.Name)
		}
		return names
	}
	before := order()
	s.Waves = planWaves(now, []Situation{s}, s.Budgets)
	if len(s.Starts) != len(s.Pods) {
		t.Fatalf("%d of %d pods are in waves", len(s.Starts), len(s.Pods))
	}
	if after := order(); !slices.Equal(before, after) {
		t.Errorf("the order is %v, and %v with waves", before, after)
	}
}

// Nodes that share a budget: the one that ends first is first in line.
func TestWavesOfSeveralNodes(t *testing.T) {
	budgets := []*policyv1.PodDisruptionBudget{budget("web", 1)}
	var nodes []Situation
	for i, in := range []time.Duration{3, 1, 2} {
		s := surging(DeploymentState{}, pod(fmt.Sprint("node", i), of("web"), readyAfter(8*time.Second)))
		s.Policy.Strategy, s.Deadline = StrategyHold, now.Add(in*time.Minute)
		nodes = append(nodes, s)
	}
	starts := planWaves(now, nodes, budgets).Starts
	if a, b, c := starts["uid-node1"], starts["uid-node2"], starts["uid-node0"]; !a.Before(b) || !b.Before(c) {
		t.Errorf("starts %s, %s, %s; want the order of the deadlines", a.Sub(now), b.Sub(now), c.Sub(now))
	}
}

// shopBudget is of three pods, or ten.
func shopBudget(app string, expected, desired, current int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app, UID: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status: policyv1.PodDisruptionBudgetStatus{
			ExpectedPods: expected, DesiredHealthy: desired, CurrentHealthy: current, DisruptionsAllowed: max(0, current-desired),
		},
	}
}

// How far apart two waves are: the time in which the pods last became Ready, and, where a replacement pod starts only
// then, that in which they end, and a volume is detached.
func TestCycles(t *testing.T) {
	claim := types.NamespacedName{Namespace: "shop", Name: "data"}
	left := func(took time.Duration) []Leaving {
		grace := int64(45)
		p := pod("left", of("web"))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(45*time.Second - took)}, &grace
		return []Leaving{{Pod: p, Gone: now}}
	}
	for name, tt := range map[string]struct {
		owner  func(*corev1.Pod)
		change func(*corev1.Pod)
		shared map[types.NamespacedName]bool
		left   []Leaving
		want   time.Duration
	}{
		"ReplicaSet":                   {want: 12 * time.Second},
		"StatefulSet":                  {owner: ownedBy("StatefulSet"), want: 57 * time.Second},
		"StatefulSet with a volume":    {owner: ownedBy("StatefulSet"), change: withClaim("data"), want: 62 * time.Second},
		"an operator's own kind":       {owner: ownedBy("Cluster"), want: 57 * time.Second},
		"a disk":                       {change: withClaim("data"), want: 62 * time.Second},
		"a shared volume":              {change: withClaim("data"), shared: map[types.NamespacedName]bool{claim: true}, want: 12 * time.Second},
		"others were seen to end":      {owner: ownedBy("StatefulSet"), left: left(20 * time.Second), want: 32 * time.Second},
		"others took longer than that": {owner: ownedBy("StatefulSet"), left: left(time.Minute), want: 57 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			s := surging(DeploymentState{})
			s.Policy.Strategy, s.Deadline, s.Left = StrategyHold, now.Add(time.Hour), tt.left
			if tt.shared != nil {
				s.Shared = tt.shared
			}
			for i := range 2 {
				p := pod(fmt.Sprint("p", i), of("web"), withGrace(45), readyAfter(10*time.Second))
				for _, change := range []func(*corev1.Pod){tt.owner, tt.change} {
					if change != nil {
						change(p)
					}
				}
				s.Pods = append(s.Pods, p)
			}
			starts := planWaves(now, []Situation{s}, []*policyv1.PodDisruptionBudget{budget("web", 1)}).Starts
			if got := starts["uid-p1"].Sub(starts["uid-p0"]); got != tt.want {
				t.Errorf("the second wave is %s after the first, want %s", got, tt.want)
			}
		})
	}
}

// While a replacement pod is awaited, a pod that is not Ready may be that one. Once its time is up, the pod must be
// another one, which is broken and uses up what the budget spares, even though nothing has happened.
func TestReplacementPodsAreAwaitedForAWhile(t *testing.T) {
	s := surging(DeploymentState{})
	s.Policy.Strategy, s.Deadline = StrategyHold, now.Add(time.Hour)
	for i := range 2 {
		s.Pods = append(s.Pods, pod(fmt.Sprint("p", i), of("web"), withGrace(45), readyAfter(10*time.Second)))
	}
	grace := int64(45)
	gone := pod("left", of("web"), readyAfter(10*time.Second))
	gone.DeletionTimestamp, gone.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(40 * time.Second)}, &grace
	s.Left = []Leaving{{Pod: gone, Gone: now.Add(-4 * time.Second)}}
	budgets := []*policyv1.PodDisruptionBudget{shopBudget("web", 6, 4, 5)}

	waves := planWaves(now, []Situation{s}, budgets)
	again := now.Add(-5 * time.Second).Add(10*time.Second + turnaround)
	if len(waves.Starts) > 0 || !waves.Again.Equal(again) {
		t.Errorf("starts %v, again at %s; want none, and again at %s", waves.Starts, waves.Again, again)
	}
	if waves = planWaves(again, []Situation{s}, budgets); len(waves.Starts) != 2 || !waves.Again.IsZero() {
		t.Errorf("starts %v, again at %s; want both in waves, and no other look", waves.Starts, waves.Again)
	}
	f := NewFleet(s.Policy, 32, 1)
	f.wavesAgain = again
	if todo := f.Next(now); !todo.Wake.Equal(again) {
		t.Errorf("asks again at %s, want %s", todo.Wake, again)
	}
	if f.Next(again); !f.wavesAgain.IsZero() {
		t.Error("the waves stay as they are")
	}
}

func TestSparedBy(t *testing.T) {
	for name, tt := range map[string]struct {
		current    int32
		onTheirWay int
		want       int
	}{
		"all Ready":               {10, 0, 3},
		"one on its way":          {9, 1, 3},
		"one broken":              {9, 0, 2},
		"one broken, one leaving": {8, 1, 2},
		"all broken":              {0, 0, 1},
		"surged":                  {12, 0, 3},
		"not shown yet":           {10, 2, 3},
	} {
		if got := sparedBy(shopBudget("web", 10, 7, tt.current), tt.onTheirWay); got != tt.want {
			t.Errorf("%s: %d at a time, want %d", name, got, tt.want)
		}
	}
}

// Two pods share a budget, on two nodes, so one is to go in the first wave. The other's node is cancelled: the first
// need not go so early, and still goes by its own eviction deadline. Waves can change between a plan and its request.
func TestPodWhoseWaveIsGoneStillGoes(t *testing.T) {
	for _, kept := range []string{"node-a", "node-b"} {
		s := newScene(t, 1, Policy{Strategy: StrategyHold, Margin: 10 * time.Second})
		s.ready = s.start.Add(time.Hour)
		b := budget("web", 0)
		b.Status.ExpectedPods, b.Status.DesiredHealthy = 2, 1
		s.budgets["web"] = b
		for _, name := range []string{"node-a", "node-b"} {
			s.add(pod("web-on-"+name, of("web"), readyAfter(5*time.Second), withGrace(45), createdAt(s.start.Add(-time.Hour))), "web", name, time.Second)
			s.drain(name, 0, 2*time.Minute)
		}
		s.recount("web")
		s.in(26*time.Second, func() {
			for name := range s.nodes {
				if name != kept {
					s.cancel(name, false)
				}
			}
		})
		s.until(2 * time.Minute)
		for _, p := range s.pods {
			if p.Spec.NodeName == kept {
				t.Errorf("%s is still on its node; requests: %q", p.Name, s.requests)
			}
		}
		if len(s.requests) == 0 {
			t.Error("nothing was requested")
		}
	}
}

// A turn takes the median start-up time, as some pods take less.
func TestTurnsTakeWhatHalfOfThePodsDid(t *testing.T) {
	now := time.Now()
	turns := surgeTurns{deployment: DeploymentState{Slots: 1}}
	for _, startup := range []time.Duration{10, 20, 40, 80} {
		turns.all = append(turns.all, wavePod{startup: startup * time.Second})
	}
	for latest, inTime := range map[time.Duration]bool{39 * time.Second: false, 41*time.Second + turnaround: true} {
		turns.waiting = []wavePod{{Pod: &corev1.Pod{}, latest: now.Add(latest)}}
		if late, _ := turns.assign(now); (len(late) == 0) != inTime {
			t.Errorf("a pod that has to go in %s has its turn: %v, want %v", latest, len(late) == 0, inTime)
		}
	}
}
