package drain

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

var (
	now    = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	taint  = corev1.Taint{Key: "spot-handler/interrupted", Value: "spot-interruption", Effect: corev1.TaintEffectNoSchedule}
	policy = Policy{Strategy: Hold, Margin: 10 * time.Second}
)

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: types.UID("uid-" + name), Annotations: map[string]string{}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func withGrace(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

func withClaim(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}}}
	}
}

func ownedBy(kind string) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "x", Controller: &yes}}
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func TestPlan(t *testing.T) {
	inTwoMinutes := Interruption{Taint: taint, Deadline: now.Add(2 * time.Minute), Capacity: PendingCapacity}
	ready := inTwoMinutes
	ready.Capacity = ReadyCapacity
	nothing := inTwoMinutes
	nothing.Capacity = NoCapacity
	soon := Interruption{Taint: taint, Deadline: now.Add(30 * time.Second), Capacity: PendingCapacity}
	passed := Interruption{Taint: taint, Deadline: now, Capacity: PendingCapacity}
	risk := Interruption{Taint: taint, Capacity: PendingCapacity}
	riskReady := Interruption{Taint: taint, Capacity: ReadyCapacity}
	riskNothing := Interruption{Taint: taint}
	atOnce := Policy{Strategy: AtOnce, Margin: 10 * time.Second}
	seconds := func(n int64) *int64 { return &n }

	for name, tt := range map[string]struct {
		pod    *corev1.Pod
		in     Interruption
		policy Policy
		action Action
		reason string
		grace  *int64
	}{
		"mirror pod":        {pod("p", annotated(corev1.MirrorPodAnnotationKey, "x")), inTwoMinutes, policy, Skip, "mirror pod", nil},
		"DaemonSet pod":     {pod("p", ownedBy("DaemonSet")), inTwoMinutes, policy, Skip, "DaemonSet pod", nil},
		"succeeded":         {pod("p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), inTwoMinutes, policy, Skip, "finished", nil},
		"failed":            {pod("p", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), inTwoMinutes, policy, Skip, "finished", nil},
		"tolerates us":      {pod("p", tolerating("spot-handler/interrupted")), inTwoMinutes, policy, Skip, "tolerates spot-handler/interrupted", nil},
		"tolerates all":     {pod("p", tolerating("")), inTwoMinutes, policy, Skip, "tolerates spot-handler/interrupted", nil},
		"tolerates another": {pod("p", tolerating("other")), inTwoMinutes, policy, Later, "waits for the replacement", nil},
		"terminating": {pod("p", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }),
			inTwoMinutes, policy, Wait, "terminating", nil},

		"held":                     {pod("p"), inTwoMinutes, policy, Later, "waits for the replacement", nil},
		"replacement ready":        {pod("p"), ready, policy, Evict, "replacement is ready", nil},
		"no replacement":           {pod("p"), nothing, policy, Evict, "nothing to wait for", nil},
		"at once":                  {pod("p"), inTwoMinutes, atOnce, Evict, "nothing to wait for", nil},
		"latest start now":         {pod("p", withGrace(110)), inTwoMinutes, policy, Evict, "latest safe start has come", nil},
		"latest start in a second": {pod("p", withGrace(109)), inTwoMinutes, policy, Later, "waits for the replacement", nil},
		"a moment late":            {pod("p", withGrace(111)), inTwoMinutes, policy, Evict, "latest safe start has come", nil},
		"late":                     {pod("p", withGrace(113)), inTwoMinutes, policy, Evict, "latest safe start has come", seconds(110)},
		"grace does not fit":       {pod("p", withGrace(300)), soon, policy, Evict, "latest safe start has come", seconds(20)},
		"grace never below 1":      {pod("p"), passed, policy, Evict, "latest safe start has come", seconds(1)},
		"grace for ever":           {pod("p", withGrace(1e10)), inTwoMinutes, policy, Evict, "latest safe start has come", seconds(110)},
		"grace of its own below 1": {pod("p", withGrace(0)), passed, policy, Evict, "latest safe start has come", nil},

		"do-not-disrupt":              {pod("p", annotated(doNotDisrupt, "true")), ready, policy, Later, doNotDisrupt, nil},
		"safe-to-evict":               {pod("p", annotated(safeToEvict, "false")), ready, policy, Later, safeToEvict + "=false", nil},
		"Job":                         {pod("p", ownedBy("Job")), ready, policy, Later, "Job pod: may finish by itself", nil},
		"do-not-disrupt, at the last": {pod("p", annotated(doNotDisrupt, "true"), withGrace(110)), ready, policy, Evict, "latest safe start has come", nil},

		"at risk, pending":     {pod("p"), risk, policy, Later, "no deadline: waits for a replacement", nil},
		"at risk, nothing":     {pod("p"), riskNothing, policy, Later, "no deadline: waits for a replacement", nil},
		"at risk, at once":     {pod("p"), risk, atOnce, Later, "no deadline: waits for a replacement", nil},
		"at risk, ready":       {pod("p"), riskReady, policy, Evict, "replacement is ready", nil},
		"at risk, not to move": {pod("p", annotated(doNotDisrupt, "true")), riskReady, policy, Later, "no deadline: " + doNotDisrupt, nil},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Plan(now, Situation{Pods: []*corev1.Pod{tt.pod}, Interruption: tt.in, Policy: tt.policy})
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

func tolerating(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}
	}
}

func deref(p *int64) any {
	if p == nil {
		return "own"
	}
	return *p
}

// For any situation: each pod has exactly one decision; none is held past its latest safe
// start, nor past its wave's; a pod's grace fits before the deadline or is clamped; no more
// pods are surged or let go than their Deployment has room for; and a tighter deadline
// never makes a start later.
func TestPlanProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	seenActions := map[Action]int{}
	clamped, waves, succeeded := 0, 0, 0
	for range 3000 {
		s := randomSituation(random)
		s.Starts = planWaves(podsInWaves(now, s), s.Budgets)
		plan := Plan(now, s)

		tighter := s
		tighter.Deadline = s.Deadline.Add(-time.Duration(random.IntN(60)) * time.Second)
		tighter.Starts = planWaves(podsInWaves(now, tighter), s.Budgets)
		starts := map[types.UID]time.Time{}
		for _, d := range Plan(now, tighter) {
			starts[d.Pod.UID] = d.At
		}

		seen := map[types.UID]bool{}
		surges, goes := map[types.NamespacedName]int{}, map[types.NamespacedName]int{}
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
			if d.takes && d.Action == Evict {
				succeeded++
			}
			if d.Reason == "" {
				t.Fatalf("%s is to %s without a reason", d.Pod.Name, d.Action)
			}
			if !d.Moves() {
				continue
			}
			if d.At.After(d.Latest) {
				t.Fatalf("%s starts at %s, later than its latest safe start %s", d.Pod.Name, d.At, d.Latest)
			}
			due := !now.Before(d.At)
			if due && (d.Action == Later || d.Action == SurgeNow) {
				t.Fatalf("%s: %s past its start %s", d.Pod.Name, d.Action, d.At)
			}
			if d.Action == Force && (now.Before(d.Latest) || !s.Refused[d.Pod.UID]) {
				t.Fatalf("%s deleted past its budget before its latest safe start, or without a refusal", d.Pod.Name)
			}
			given := grace(d.Pod)
			if d.Grace != nil {
				given = time.Duration(*d.Grace) * time.Second
			}
			if end := now.Add(given); given > time.Second && end.After(s.Deadline.Add(-s.Policy.Margin+lateBy)) && (d.Action == Evict || d.Action == Force) {
				t.Fatalf("%s evicted now ends at %s, past %s less %s and %s", d.Pod.Name, end, s.Deadline, s.Policy.Margin, lateBy)
			}
			if starts[d.Pod.UID].After(d.At) {
				t.Fatalf("%s starts at %s, and at %s under a tighter deadline", d.Pod.Name, d.At, starts[d.Pod.UID])
			}
			if d.Action == SurgeNow {
				surges[d.workload]++
			}
			if d.Action == Evict && surged(d.Pod) && !due && s.Policy.Strategy != AtOnce {
				goes[d.workload]++
			}
		}
		if len(seen) != len(s.Pods) {
			t.Fatalf("%d decisions for %d pods", len(seen), len(s.Pods))
		}
		for name, w := range s.Workloads {
			if surges[name] > w.Slots || (w.Selector != nil && goes[name] > w.Spare) {
				t.Fatalf("%s: %d surged of %d, %d let go of %d", name, surges[name], w.Slots, goes[name], w.Spare)
			}
		}
	}
	for _, action := range []Action{Skip, Wait, Later, SurgeNow, Evict, Force} {
		if seenActions[action] < 100 {
			t.Errorf("%d decisions to %s: the situations show nothing of it", seenActions[action], action)
		}
	}
	if clamped < 100 || waves < 100 || succeeded < 100 {
		t.Errorf("%d graces clamped, %d waves, %d successors available: the situations show nothing of them", clamped, waves, succeeded)
	}
}

func randomSituation(random *rand.Rand) Situation {
	s := Situation{
		Interruption: Interruption{Taint: taint, Deadline: now.Add(time.Duration(random.IntN(300)) * time.Second), Capacity: Capacity(random.IntN(3))},
		Policy: Policy{
			Strategy: Strategies()[random.IntN(3)], Blocked: BlockedPolicies()[random.IntN(2)],
			Margin: time.Duration(random.IntN(30)) * time.Second,
		},
		Workloads: map[types.NamespacedName]Workload{}, Refused: map[types.UID]bool{},
		Blocked: map[string]BlockedPolicy{"shop": ""},
	}
	for i := range 3 {
		app := fmt.Sprint("app", i)
		selector := labels.SelectorFromSet(labels.Set{"app": app})
		switch random.IntN(4) {
		case 0: // not known
		case 1:
			s.Workloads[types.NamespacedName{Namespace: "shop", Name: app}] = Workload{}
		default:
			s.Workloads[types.NamespacedName{Namespace: "shop", Name: app}] = Workload{Selector: selector, Slots: random.IntN(4), Spare: random.IntN(3)}
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
			change = append(change, annotated(doNotDisrupt, "true"))
		case 1:
			change = append(change, ownedBy([]string{"DaemonSet", "Job", "StatefulSet"}[random.IntN(3)]))
		case 2, 3, 4:
			change = append(change, isSurgedPod)
		case 5:
			change = append(change, withGrace(random.Int64N(400)))
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

// of makes the pod one of a Deployment.
func of(app string) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": app, hashLabel: "abc12"}
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: app + "-abc12", UID: "set", Controller: &yes}}
	}
}

// isSurgedPod is what the API server makes of a surge.
func isSurgedPod(p *corev1.Pod) {
	app := p.Labels["app"]
	p.Labels = surgedLabels(p)
	p.Annotations[SurgedLabel] = fmt.Sprintf(`{"replicaSet":%q,"uid":"set"}`, app+"-abc12")
	p.OwnerReferences = nil
}

func readyAfter(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		scheduled := now.Add(-time.Hour)
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(scheduled)},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(scheduled.Add(d))},
		}
	}
}

// budget lets atOnce of the app's ten pods go at a time.
func budget(app string, atOnce int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{ExpectedPods: 10, DesiredHealthy: 10 - atOnce},
	}
}
