package drain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func membersOf(pods []*corev1.Pod) (list []*member) {
	for _, p := range pods {
		list = append(list, memberOf(p))
	}
	return list
}

// The count of a Deployment's pods never has one pod twice, whatever the ReplicaSet has
// caught up with: what is asked for counts at once, and no more when it shows.
func TestTally(t *testing.T) {
	d := deploymentOf(4, func(d *deployment) { *d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.FromInt32(1) })
	l := newTally()
	pods := []*corev1.Pod{webPod("a"), webPod("b"), webPod("c"), webPod("d")}
	check := func(what string, slots, spare int) {
		t.Helper()
		if w, _ := l.count(now, d, membersOf(pods)); w.Slots != slots || w.Spare != spare {
			t.Errorf("%s: %d slots, %d spare; want %d, %d", what, w.Slots, w.Spare, slots, spare)
		}
	}
	check("before", 1, 0)
	if !l.reserve(now, d, membersOf(pods), pods[0], SurgeNow) {
		t.Fatal("a is not surged")
	}
	check("asked for", 0, 0)
	if l.reserve(now, d, membersOf(pods), pods[1], SurgeNow) {
		t.Fatal("b surged beside a, over maxSurge")
	}
	pods[0] = webPod("a", isSurgedPod)
	check("surged", 0, 0)
	successor := webPod("e", func(p *corev1.Pod) { p.Status.Conditions = nil })
	pods = append(pods, successor)
	check("successor made", 0, 0)
	if l.reserve(now, d, membersOf(pods), pods[0], Evict) {
		t.Fatal("a evicted before its successor is available")
	}
	pods[4] = webPod("e")
	check("successor ready", 0, 1)
	if !l.reserve(now, d, membersOf(pods), pods[0], Evict) {
		t.Fatal("a is not evicted")
	}
	check("eviction asked for", 0, 0)
	l.settle(pods[0].UID)
	check("eviction refused", 0, 1)
	if !l.reserve(now, d, membersOf(pods), pods[0], Evict) {
		t.Fatal("a is not evicted")
	}
	pods[0].DeletionTimestamp = &metav1.Time{Time: now}
	check("terminating", 1, 0)
	pods = pods[1:]
	check("gone", 1, 0)

	*d.Spec.Replicas = 2 // scaled down: the ReplicaSet has not followed yet
	check("scaled down", 1, 2)
	if w, _ := l.count(now, nil, membersOf(pods)); w.Selector != nil {
		t.Error("a Deployment that is gone has a selector")
	}
}

func TestTallyWaitsUntilAReadyPodIsAvailable(t *testing.T) {
	d := deploymentOf(1, func(d *deployment) { d.Spec.MinReadySeconds = 30 })
	fresh := webPod("b")
	fresh.Status.Conditions[1].LastTransitionTime = metav1.NewTime(now.Add(-10 * time.Second))
	w, next := newTally().count(now, d, membersOf([]*corev1.Pod{webPod("a", isSurgedPod), fresh}))
	if w.Spare != 0 || !next.Equal(now.Add(20*time.Second)) {
		t.Errorf("%d spare, next at %s; want 0, in 20 s", w.Spare, next.Sub(now))
	}
	w, _ = newTally().count(next, d, membersOf([]*corev1.Pod{webPod("a", isSurgedPod), fresh}))
	if w.Spare != 1 {
		t.Errorf("%d spare when it is available, want 1", w.Spare)
	}
}
