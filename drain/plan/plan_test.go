package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

func TestPlan(t *testing.T) {
	inTwoMinutes := NodeState{Taint: taint, Deadline: now.Add(2 * time.Minute), Capacity: PendingCapacity}
	ready := inTwoMinutes
	ready.Capacity = ReadyCapacity
	nothing := inTwoMinutes
	nothing.Capacity = NoCapacity
	soon := NodeState{Taint: taint, Deadline: now.Add(30 * time.Second), Capacity: PendingCapacity}
	passed := NodeState{Taint: taint, Deadline: now, Capacity: PendingCapacity}
	marked := NodeState{Taint: taint, Since: now.Add(-time.Second), Deadline: now.Add(2 * time.Minute), Capacity: PendingCapacity}
	cordoned, markedLately := marked, marked
	cordoned.Since, markedLately.Since = now.Add(-11*time.Second), now.Add(-3*time.Second)
	slowly, slower := cordoned, cordoned // the write of the mark hung
	slowly.Marked, slower.Marked = now.Add(-9*time.Second), now.Add(-10*time.Second)
	risk := NodeState{Taint: taint, Capacity: PendingCapacity}
	riskReady := NodeState{Taint: taint, Capacity: ReadyCapacity}
	riskNothing := NodeState{Taint: taint}
	atOnce := Policy{Strategy: StrategyAtOnce, Margin: 10 * time.Second}
	seconds := func(n int64) *int64 { return &n }

	for name, tt := range map[string]struct {
		pod    *corev1.Pod
		in     NodeState
		policy Policy
		action Action
		reason string
		grace  *int64
	}{
		"mirror pod":    {pod("p", annotated(corev1.MirrorPodAnnotationKey, "x")), inTwoMinutes, policy, Skip, "mirror pod", nil},
		"DaemonSet pod": {pod("p", ownedBy("DaemonSet")), inTwoMinutes, policy, Skip, "DaemonSet pod", nil},
		"succeeded":     {pod("p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), inTwoMinutes, policy, Skip, "finished", nil},
		"failed":        {pod("p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), inTwoMinutes, policy, Skip, "finished", nil},
		"tolerates us":  {pod("p", tolerating("spot-handler/interrupted")), inTwoMinutes, policy, Skip, "tolerates spot-handler/interrupted", nil},
		"tolerates all": {pod("p", tolerating("")), inTwoMinutes, policy, Hold, everyTaint, nil},
		"tolerates all, at its eviction deadline": {pod("p", tolerating(""), withGrace(110)), ready, policy, Evict, "eviction deadline has come", nil},
		"tolerates all, came back":                {pod("p", tolerating(""), createdAt(now)), marked, policy, Skip, "tolerates every taint, and has come since the node was marked", nil},
		"tolerates all, was there":                {pod("p", tolerating(""), createdAt(now.Add(-time.Hour))), marked, policy, Hold, everyTaint, nil},
		"put here a moment after the cordon":      {pod("p", ownedBy("ReplicaSet"), createdAt(now)), marked, atOnce, Hold, "has come since the node was marked, and might come again", nil},
		"put here later":                          {pod("p", ownedBy("ReplicaSet"), createdAt(now)), cordoned, atOnce, Skip, "its controller has put it on this node since the node was marked", nil},
		"put here while the mark was written":     {pod("p", ownedBy("ReplicaSet"), createdAt(now)), slowly, atOnce, Hold, "has come since the node was marked, and might come again", nil},
		"put here later than that":                {pod("p", ownedBy("ReplicaSet"), createdAt(now)), slower, atOnce, Skip, "its controller has put it on this node since the node was marked", nil},
		"put here a moment after it, at the last": {pod("p", ownedBy("ReplicaSet"), createdAt(now.Add(-2*time.Second)), withGrace(110)), markedLately, atOnce, Evict, "eviction deadline has come", nil},
		"came since":                              {pod("p", createdAt(now)), marked, policy, Hold, "waits for the replacement", nil},
		"tolerates another":                       {pod("p", tolerating("other")), inTwoMinutes, policy, Hold, "waits for the replacement", nil},
		"terminating": {pod("p", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }),
			inTwoMinutes, policy, Wait, "terminating", nil},

		"held":                     {pod("p"), inTwoMinutes, policy, Hold, "waits for the replacement", nil},
		"replacement ready":        {pod("p"), ready, policy, Evict, "replacement is ready", nil},
		"no replacement":           {pod("p"), nothing, policy, Evict, "nothing to wait for", nil},
		"at once":                  {pod("p"), inTwoMinutes, atOnce, Evict, "nothing to wait for", nil},
		"latest start now":         {pod("p", withGrace(110)), inTwoMinutes, policy, Evict, "eviction deadline has come", nil},
		"latest start in a second": {pod("p", withGrace(109)), inTwoMinutes, policy, Hold, "waits for the replacement", nil},
		"a moment late":            {pod("p", withGrace(111)), inTwoMinutes, policy, Evict, "eviction deadline has come", nil},
		"late":                     {pod("p", withGrace(113)), inTwoMinutes, policy, Evict, "eviction deadline has come", seconds(110)},
		"grace does not fit":       {pod("p", withGrace(300)), soon, policy, Evict, "eviction deadline has come", seconds(20)},
		"grace never below 1":      {pod("p"), passed, policy, Evict, "eviction deadline has come", seconds(1)},
		"grace for ever":           {pod("p", withGrace(1e10)), inTwoMinutes, policy, Evict, "eviction deadline has come", seconds(110)},
		"grace of its own below 1": {pod("p", withGrace(0)), passed, policy, Evict, "eviction deadline has come", nil},

		"do-not-disrupt":              {pod("p", annotated(DoNotDisrupt, "true")), ready, policy, Hold, DoNotDisrupt, nil},
		"safe-to-evict":               {pod("p", annotated(SafeToEvict, "false")), ready, policy, Hold, SafeToEvict + "=false", nil},
		"Job":                         {pod("p", ownedBy("Job")), ready, policy, Hold, "Job pod: might finish by itself", nil},
		"do-not-disrupt, at the last": {pod("p", annotated(DoNotDisrupt, "true"), withGrace(110)), ready, policy, Evict, "eviction deadline has come", nil},

		"at risk, pending":                 {pod("p"), risk, policy, Hold, "no deadline: waits for a replacement", nil},
		"at risk, nothing":                 {pod("p"), riskNothing, policy, Hold, "no deadline: waits for a replacement", nil},
		"at risk, at once":                 {pod("p"), risk, atOnce, Hold, "no deadline: waits for a replacement", nil},
		"at risk, ready":                   {pod("p"), riskReady, policy, Evict, "replacement is ready", nil},
		"do-not-disrupt for a time":        {pod("p", annotated(DoNotDisrupt, "1h"), startedAt(now)), ready, policy, Hold, DoNotDisrupt + " for 1h", nil},
		"do-not-disrupt, its time is over": {pod("p", annotated(DoNotDisrupt, "1h"), startedAt(now.Add(-time.Hour))), ready, policy, Evict, "replacement is ready", nil},
		"at risk, not to move":             {pod("p", annotated(DoNotDisrupt, "true")), riskReady, policy, Hold, "no deadline: " + DoNotDisrupt, nil},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Plan(now, Situation{Pods: []*corev1.Pod{tt.pod}, NodeState: tt.in, Policy: tt.policy})
			if len(plan) != 1 {
				t.Fatalf("%d decisions, want 1", len(plan))
			}
			d := plan[0]
			if d.Action != tt.action || d.Reason != tt.reason {
				t.Errorf("%s (%s), want %s (%s)", d.Action, d.Reason, tt.action, tt.reason)
			}
			if fmt.Sprint(deref(d.Grace)) != fmt.Sprint(deref(tt.grace)) {
				t.Errorf("grace %v, want %v", deref(d.Grace), deref(tt.grace))
			}
		})
	}
}

func deref(p *int64) any {
	if p == nil {
		return "own"
	}
	return *p
}

// For any situation: each pod has exactly one decision; none is held past its eviction
// deadline, nor past its wave's; a pod's grace fits before the deadline or is clamped; no more
// pods are surged or let go than their Deployment has room for; and a tighter deadline
// never makes a start later, nor has fewer pods go in waves where turns to be surged decide
// which of them do.
func TestPlanProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	seenActions := map[Action]int{}
	clamped, waves, succeeded := 0, 0, 0
	for range 3000 {
		s := randomSituation(random)
		s.Waves = planWaves(now, []Situation{s}, s.Budgets)
		plan := Plan(now, s)

		tighter := s
		tighter.Deadline = s.Deadline.Add(-time.Duration(random.IntN(60)) * time.Second)
		tighter.Waves = planWaves(now, []Situation{tighter}, tighter.Budgets)
		starts := map[types.UID]time.Time{}
		for _, d := range Plan(now, tighter) {
			starts[d.Pod.UID] = d.At
			if s.Policy.Strategy == StrategySurge {
				starts[d.Pod.UID] = d.Latest
			}
		}
		few, _ := podsInWaves(now, []Situation{s})
		if many, _ := podsInWaves(now, []Situation{tighter}); len(many) < len(few) {
			t.Fatalf("%d pods in waves, and %d under a tighter deadline", len(few), len(many))
		}

		seen := map[types.UID]bool{}
		uses := map[share]int{}
		for i, d := range plan {
			if seen[d.Pod.UID] {
				t.Fatalf("two decisions for %s", d.Pod.Name)
			}
			seen[d.Pod.UID] = true
			if i > 0 && d.At.Before(plan[i-1].At) {
				t.Fatalf("%s out of order", d.Pod.Name)
			}
			seenActions[d.Action]++
			if d.Grace != nil {
				clamped++
			}
			if d.At.Before(d.Latest) {
				waves++
			}
			if d.Takes && d.Action == Evict {
				succeeded++
			}
			if d.Reason == "" {
				t.Fatalf("%s is to %s without a reason", d.Pod.Name, d.Action)
			}
			if !d.Moves() {
				continue
			}
			if d.At.After(d.Latest) {
				t.Fatalf("%s starts at %s, later than its eviction deadline %s", d.Pod.Name, d.At, d.Latest)
			}
			due := !now.Before(d.At)
			if due && (d.Action == Hold || d.Action == SurgeNow || d.Action == Return && d.Takes) {
				t.Fatalf("%s: %s past its start %s", d.Pod.Name, d.Action, d.At)
			}
			if d.Action == Force && (now.Before(d.Latest) || !s.Refused[d.Pod.UID]) {
				t.Fatalf("%s deleted past its budget before its eviction deadline, or without a refusal", d.Pod.Name)
			}
			given := Grace(d.Pod)
			if d.Grace != nil {
				given = time.Duration(*d.Grace) * time.Second
			}
			if end := now.Add(given); given > time.Second && end.After(s.Deadline.Add(-s.Policy.Margin+lateBy)) && (d.Action == Evict || d.Action == Force) {
				t.Fatalf("%s evicted now ends at %s, past %s less %s and %s", d.Pod.Name, end, s.Deadline, s.Policy.Margin, lateBy)
			}
			if starts[d.Pod.UID].After(d.At) && (s.Policy.Strategy != StrategySurge || starts[d.Pod.UID].After(d.Latest)) {
				t.Fatalf("%s starts at %s, and at %s under a tighter deadline", d.Pod.Name, d.At, starts[d.Pod.UID])
			}
			if d.Takes {
				uses[share{d.Deployment, d.Action}]++
			}
			if (d.Action == End || d.Action == Return) && !IsSurged(d.Pod) || d.Action == Evict && IsSurged(d.Pod) && !due && s.Policy.Strategy != StrategyAtOnce && !d.Takes {
				t.Fatalf("%s is to %s: %s", d.Pod.Name, d.Action, d.Reason)
			}
		}
		if len(seen) != len(s.Pods) {
			t.Fatalf("%d decisions for %d pods", len(seen), len(s.Pods))
		}
		for name, w := range s.Deployments {
			for action, has := range map[Action]int{SurgeNow: w.Slots, Evict: w.Evictable, End: w.Excess, Return: w.Lacking} {
				if used := uses[share{name, action}]; used > has {
					t.Fatalf("%s: %d to %s, of %d", name, used, action, has)
				}
			}
		}
	}
	for _, action := range []Action{Skip, Wait, Hold, SurgeNow, Evict, Force, End, Return} {
		if seenActions[action] < 100 {
			t.Errorf("%d decisions to %s: the situations show nothing of it", seenActions[action], action)
		}
	}
	if clamped < 100 || waves < 100 || succeeded < 100 {
		t.Errorf("%d graces clamped, %d waves, %d replacement pods available: the situations show nothing of them", clamped, waves, succeeded)
	}
}

func randomSituation(random *rand.Rand) Situation {
	s := Situation{
		NodeState: NodeState{Taint: taint, Deadline: now.Add(time.Duration(random.IntN(300)) * time.Second), Capacity: Capacity(random.IntN(3))},
		Policy: Policy{
			Strategy: Strategies()[random.IntN(3)], Blocked: BlockedPolicies()[random.IntN(2)],
			Margin: time.Duration(random.IntN(30)) * time.Second,
		},
		Deployments: map[types.NamespacedName]DeploymentState{}, Refused: map[types.UID]bool{},
		Namespaces: map[string]Preferences{"shop": {}}, Constraints: map[string]NamespaceConstraints{"shop": {}},
	}
	for i := range 3 {
		app := fmt.Sprint("app", i)
		selector := labels.SelectorFromSet(labels.Set{"app": app})
		switch random.IntN(4) {
		case 0: // not known
		case 1:
			s.Deployments[types.NamespacedName{Namespace: "shop", Name: app}] = DeploymentState{}
		default:
			s.Deployments[types.NamespacedName{Namespace: "shop", Name: app}] = DeploymentState{
				Selector: selector, Slots: random.IntN(4), Evictable: random.IntN(3), Excess: max(0, random.IntN(6)-3), Lacking: max(0, random.IntN(6)-3),
			}
		}
		if random.IntN(2) == 0 {
			s.Budgets = append(s.Budgets, budget(app, int32(random.IntN(4))))
		}
	}
	grace := random.Int64N(200)
	for i := range random.IntN(20) {
		change := []func(*corev1.Pod){withGrace(grace), of(fmt.Sprint("app", random.IntN(3))), readyAfter(time.Duration(random.IntN(30)) * time.Second)}
		switch random.IntN(12) {
		case 0:
			change = append(change, annotated(DoNotDisrupt, "true"))
		case 1:
			change = append(change, ownedBy([]string{"DaemonSet", "Job", "StatefulSet"}[random.IntN(3)]))
		case 2, 3, 4:
			change = append(change, isSurgedPod)
		case 5:
			change = append(change, withGrace(random.Int64N(400)))
		case 6:
			change = append(change, annotated(WhenAnnotation, string(Whens()[random.IntN(3)])))
		case 7, 8:
			change = append(change, labelled(GangLabel, fmt.Sprint(random.IntN(2))))
		}
		p := pod(fmt.Sprint("p", i), change...)
		if random.IntN(10) == 0 {
			p.DeletionTimestamp = &metav1.Time{Time: now}
		}
		s.Refused[p.UID] = random.IntN(4) == 0
		s.Pods = append(s.Pods, p)
	}
	return s
}

func TestOwnPodGoesLast(t *testing.T) {
	s := surging(DeploymentState{}, pod("own"), pod("other"))
	s.Policy.Strategy, s.Policy.Self, s.Capacity = StrategyHold, types.NamespacedName{Namespace: "shop", Name: "own"}, ReadyCapacity
	if got, want := actions(Plan(now, s)), "other evict, own hold"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	s.Pods = s.Pods[:1]
	if got, want := actions(Plan(now, s)), "own evict"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestBlockedPods(t *testing.T) {
	passed := 81 * time.Second
	for name, tt := range map[string]struct {
		flag, namespace BlockedPolicy
		annotation      string
		want            Action
	}{
		"leave":                         {flag: Leave, want: Evict},
		"delete":                        {flag: Delete, want: Force},
		"namespace before flag":         {flag: Leave, namespace: Delete, want: Force},
		"pod before namespace":          {flag: Delete, namespace: Delete, annotation: "leave", want: Evict},
		"nonsense counts as not there":  {flag: Delete, annotation: "perhaps", want: Force},
		"pod before flag, on the other": {flag: Leave, annotation: "delete", want: Force},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("p", withGrace(30))
			if tt.annotation != "" {
				p.Annotations[BlockedAnnotation] = tt.annotation
			}
			s := surging(DeploymentState{}, p)
			s.Policy.Strategy, s.Policy.Blocked = StrategyHold, tt.flag
			s.Refused = map[types.UID]bool{p.UID: true}
			s.Namespaces = map[string]Preferences{"shop": {Blocked: tt.namespace}}
			if d := Plan(now, s)[0]; d.Action != Hold {
				t.Errorf("before its latest start: %s, want hold", d.Action)
			}
			if d := Plan(now.Add(passed), s)[0]; d.Action != tt.want {
				t.Errorf("%s (%s), want %s", d.Action, d.Reason, tt.want)
			}
			s.Namespaces = nil
			if d := Plan(now.Add(passed), s)[0]; tt.annotation == "" && d.Action != Evict {
				t.Errorf("before it is known what its namespace says: %s, want evict", d.Action)
			}
			s.Refused = nil
			if d := Plan(now.Add(passed), s)[0]; d.Action != Evict {
				t.Errorf("never refused: %s, want evict", d.Action)
			}
		})
	}
}

// On a mere recommendation a pod stays whose budget never lets any go, although its replacement pod
// would make the room; when the end is certain, it moves that way.
func TestBudgetThatNeverLetsAnyGo(t *testing.T) {
	never, always := budget("web", 0), budget("web", 3)
	unknown := budget("web", 0)
	unknown.Status = policyv1.PodDisruptionBudgetStatus{}
	for name, tt := range map[string]struct {
		budget   *policyv1.PodDisruptionBudget
		pod      *corev1.Pod
		deadline time.Time
		want     Action
		stays    bool
	}{
		"at risk":                 {never, webPod("p"), time.Time{}, Hold, true},
		"at risk, some may go":    {always, webPod("p"), time.Time{}, SurgeNow, false},
		"at risk, not known yet":  {unknown, webPod("p"), time.Time{}, SurgeNow, false},
		"at risk, another's":      {budget("db", 0), webPod("p"), time.Time{}, SurgeNow, false},
		"at risk, surged already": {never, webPod("p", isSurgedPod), time.Time{}, Hold, false},
		"certain":                 {never, webPod("p"), now.Add(2 * time.Minute), SurgeNow, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := surging(DeploymentState{Slots: 1}, tt.pod)
			s.Deadline, s.Capacity, s.Budgets = tt.deadline, ReadyCapacity, []*policyv1.PodDisruptionBudget{tt.budget}
			if d := Plan(now, s)[0]; d.Action != tt.want || d.Stays != tt.stays || d.Moves() == tt.stays {
				t.Errorf("%s (%s), stays %t; want %s, %t", d.Action, d.Reason, d.Stays, tt.want, tt.stays)
			}
		})
	}
}

// A node that is only at risk has no deadline, and nothing is done to its pods before the
// replacement is Ready, nor ever past a budget or against their owner's preference: however long
// it takes, with every strategy.
func TestNoHurryWithoutADeadline(t *testing.T) {
	years := now.Add(10 * 365 * 24 * time.Hour)
	for _, strategy := range Strategies() {
		for _, capacity := range []Capacity{NoCapacity, PendingCapacity, ReadyCapacity} {
			pods := []*corev1.Pod{
				pod("plain"), pod("pinned", annotated(DoNotDisrupt, "true")), pod("job", ownedBy("Job")), webPod("web"), webPod("surged", isSurgedPod),
			}
			s := surging(DeploymentState{Slots: 1}, pods...)
			s.NodeState = NodeState{Taint: taint, Capacity: capacity}
			s.Policy = Policy{Strategy: strategy, Blocked: Delete, Margin: 10 * time.Second}
			s.Refused = map[types.UID]bool{}
			for _, p := range pods {
				s.Refused[p.UID] = true
			}
			want := "job hold, pinned hold, plain hold, surged hold, web hold"
			if capacity == ReadyCapacity {
				want = map[Strategy]string{
					StrategySurge:  "job hold, pinned hold, plain evict, surged hold, web surge",
					StrategyHold:   "job hold, pinned hold, plain evict, surged hold, web evict",
					StrategyAtOnce: "job hold, pinned hold, plain evict, surged evict, web evict",
				}[strategy]
			}
			for _, at := range []time.Time{now, years} {
				plan := Plan(at, s)
				if got := actions(plan); got != want {
					t.Errorf("%s, capacity %d: %s, want %s", strategy, capacity, got, want)
				}
				for _, d := range plan {
					if d.Grace != nil || !d.At.IsZero() || !d.Latest.IsZero() {
						t.Errorf("%s: grace %v, by %s; want no limit", d.Pod.Name, d.Grace, d.At)
					}
				}
			}
			if pods, _ := podsInWaves(now, []Situation{s}); pods != nil {
				t.Errorf("waves of %v, want none", pods)
			}
		}
	}
}
