package drain

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		"grace does not fit":       {pod("p", withGrace(300)), soon, policy, Evict, "latest safe start has come", seconds(20)},
		"grace never below 1":      {pod("p"), passed, policy, Evict, "latest safe start has come", seconds(1)},
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
			plan := Plan(now, []*corev1.Pod{tt.pod}, tt.in, tt.policy)
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

// For any node: each pod has exactly one decision; a pod whose latest safe start has
// come is not held; a pod's grace fits before the deadline or is clamped; and a
// tighter deadline never makes a start later.
func TestPlanProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var pods []*corev1.Pod
		for i := range random.IntN(20) {
			change := []func(*corev1.Pod){withGrace(random.Int64N(400))}
			if random.IntN(4) == 0 {
				change = append(change, annotated(doNotDisrupt, "true"))
			}
			if random.IntN(6) == 0 {
				change = append(change, ownedBy([]string{"DaemonSet", "Job", "ReplicaSet"}[random.IntN(3)]))
			}
			pods = append(pods, pod(fmt.Sprint("p", i), change...))
		}
		in := Interruption{Taint: taint, Deadline: now.Add(time.Duration(random.IntN(300)) * time.Second), Capacity: Capacity(random.IntN(3))}
		policy := Policy{Strategy: Strategies()[random.IntN(2)], Margin: time.Duration(random.IntN(30)) * time.Second}
		plan := Plan(now, pods, in, policy)

		tighter := in
		tighter.Deadline = in.Deadline.Add(-time.Duration(random.IntN(60)) * time.Second)
		starts := map[types.UID]time.Time{}
		for _, d := range Plan(now, pods, tighter, policy) {
			starts[d.Pod.UID] = d.At
		}

		seen := map[types.UID]bool{}
		for i, d := range plan {
			if seen[d.Pod.UID] {
				t.Fatalf("two decisions for %s", d.Pod.Name)
			}
			seen[d.Pod.UID] = true
			if i > 0 && d.At.Before(plan[i-1].At) {
				t.Fatalf("%s out of order", d.Pod.Name)
			}
			if !d.Moves() {
				continue
			}
			if d.Action == Later && !now.Before(d.At) {
				t.Fatalf("%s is held past its latest safe start %s", d.Pod.Name, d.At)
			}
			given := grace(d.Pod)
			if d.Grace != nil {
				given = time.Duration(*d.Grace) * time.Second
			}
			if end := now.Add(given); given > time.Second && end.After(in.Deadline.Add(-policy.Margin)) && d.Action == Evict {
				t.Fatalf("%s evicted now ends at %s, past %s less %s", d.Pod.Name, end, in.Deadline, policy.Margin)
			}
			if starts[d.Pod.UID].After(d.At) {
				t.Fatalf("%s starts later under a tighter deadline", d.Pod.Name)
			}
		}
		if len(seen) != len(pods) {
			t.Fatalf("%d decisions for %d pods", len(seen), len(pods))
		}
	}
}
