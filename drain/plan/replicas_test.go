package plan

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func replicasOf(pods []*corev1.Pod) (list []*Replica) {
	for _, p := range pods {
		list = append(list, ReplicaOf(p))
	}
	return list
}

// The count of a Deployment's pods never has one pod twice, whatever the ReplicaSet has
// caught up with: what is asked for counts at once, and no more when it shows.
func TestLedger(t *testing.T) {
	d := deploymentOf(4, func(d *Deployment) { *d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.FromInt32(1) })
	l := newReplicaLedger()
	pods := []*corev1.Pod{webPod("a"), webPod("b"), webPod("c"), webPod("d")}
	check := func(what string, slots, spare int) {
		t.Helper()
		if w, _ := l.Count(now, d, replicasOf(pods)); w.Slots != slots || w.Evictable != spare {
			t.Errorf("%s: %d slots, %d spare; want %d, %d", what, w.Slots, w.Evictable, slots, spare)
		}
	}
	check("before", 1, 0)
	if !l.reserve(now, d, replicasOf(pods), pods[0], SurgeNow, 0) {
		t.Fatal("a is not surged")
	}
	check("asked for", 0, 0)
	if l.reserve(now, d, replicasOf(pods), pods[1], SurgeNow, 0) {
		t.Fatal("b surged beside a, over maxSurge")
	}
	pods[0] = webPod("a", isSurgedPod)
	check("surged", 0, 0)
	replacement := webPod("e", createdAt(now), func(p *corev1.Pod) { p.Status.Conditions = nil })
	pods = append(pods, replacement)
	check("replacement pod made", 0, 0)
	if l.reserve(now, d, replicasOf(pods), pods[0], Evict, 0) {
		t.Fatal("a evicted before its replacement pod is available")
	}
	pods[4] = webPod("e", createdAt(now))
	check("replacement pod ready", 0, 1)
	if !l.reserve(now, d, replicasOf(pods), pods[0], Evict, 0) {
		t.Fatal("a is not evicted")
	}
	check("eviction asked for", 0, 0)
	l.release(pods[0].UID, Evict)
	check("eviction refused", 0, 1)
	if !l.reserve(now, d, replicasOf(pods), pods[0], Evict, 0) {
		t.Fatal("a is not evicted")
	}
	pods[0].DeletionTimestamp = &metav1.Time{Time: now}
	check("terminating", 1, 0)
	pods = pods[1:]
	check("gone", 1, 0)

	*d.Spec.Replicas = 2 // scaled down: the ReplicaSet has not followed yet
	check("scaled down", 1, 2)
	if w, _ := l.Count(now, nil, replicasOf(pods)); w.Selector != nil {
		t.Error("a Deployment that is gone has a selector")
	}
}

func TestLedgerWaitsUntilAReadyPodIsAvailable(t *testing.T) {
	d := deploymentOf(1, func(d *Deployment) { d.Spec.MinReadySeconds = 30 })
	fresh := webPod("b")
	fresh.Status.Conditions[1].LastTransitionTime = metav1.NewTime(now.Add(-10 * time.Second))
	w, next := newReplicaLedger().Count(now, d, replicasOf([]*corev1.Pod{webPod("a", isSurgedPod), fresh}))
	if w.Evictable != 0 || !next.Equal(now.Add(20*time.Second)) {
		t.Errorf("%d spare, next at %s; want 0, in 20 s", w.Evictable, next.Sub(now))
	}
	w, _ = newReplicaLedger().Count(next, d, replicasOf([]*corev1.Pod{webPod("a", isSurgedPod), fresh}))
	if w.Evictable != 1 {
		t.Errorf("%d spare when it is available, want 1", w.Evictable)
	}
}

// What the ReplicaSet would have ended, and what it cannot make, of four pods on a node and two
// on others.
func TestLedgerOfWhatTheOwnerWants(t *testing.T) {
	surgedNow := func(p *corev1.Pod) {
		isSurgedPod(p)
		p.Annotations[SurgedAnnotation] = `{"replicaSet":"web-abc12","uid":"set","at":"` + now.Format(time.RFC3339) + `"}`
	}
	unready := func(p *corev1.Pod) { p.Status.Conditions = nil }
	old := createdAt(now.Add(-time.Hour))
	group := func(n int, change ...func(*corev1.Pod)) (list []*corev1.Pod) {
		for range n {
			list = append(list, webPod(string(rune('a'+len(list)))+time.Now().String(), change...))
		}
		return list
	}
	surged, others := group(4, old, surgedNow), group(2, old)
	made := func(ready, pending int) []*corev1.Pod {
		return append(group(ready, createdAt(now)), group(pending, createdAt(now), unready)...)
	}
	failing := func(d *Deployment) {
		d.Status.Conditions = append(d.Status.Conditions, deploymentCondition{Type: "ReplicaFailure", Status: "True", Message: "exceeded quota"})
	}
	for name, tt := range map[string]struct {
		replicas        int32
		pods            [][]*corev1.Pod
		change          func(*Deployment)
		excess, lacking int
	}{
		"as before":                        {6, [][]*corev1.Pod{surged, others, made(0, 4)}, nil, 0, 0},
		"replacement pods Ready":           {6, [][]*corev1.Pod{surged, others, made(4, 0)}, nil, 0, 0},
		"to zero":                          {0, [][]*corev1.Pod{surged, others, made(0, 4)}, nil, 4, 0},
		"to zero, unready":                 {0, [][]*corev1.Pod{group(4, old, surgedNow, unready), others}, nil, 4, 0},
		"by one, nothing followed":         {5, [][]*corev1.Pod{surged, others, made(0, 4)}, nil, 1, 0},
		"by one, ReplicaSet has followed":  {5, [][]*corev1.Pod{surged, others, made(0, 3)}, nil, 1, 0},
		"by one, and one has gone":         {5, [][]*corev1.Pod{surged[1:], others, made(0, 3)}, nil, 0, 0},
		"by one, without replacement pods": {5, [][]*corev1.Pod{surged, others}, nil, 1, 0},
		"to two":                           {2, [][]*corev1.Pod{surged, others}, nil, 4, 0},
		"by one, others Ready since":       {3, [][]*corev1.Pod{surged, made(2, 1)}, nil, 1, 0},
		"by one, others unready":           {5, [][]*corev1.Pod{surged, group(2, old, unready)}, nil, 0, 0},
		"up":                               {8, [][]*corev1.Pod{surged, others, made(0, 4)}, nil, 0, 0},
		"no replacement pod can be made":   {6, [][]*corev1.Pod{surged, others}, failing, 0, 4},
		"one can be made":                  {6, [][]*corev1.Pod{surged, others, made(0, 1)}, failing, 0, 3},
		"all are made, and failed earlier": {6, [][]*corev1.Pod{surged, others, made(0, 4)}, failing, 0, 0},
		"more wanted than can be made":     {20, [][]*corev1.Pod{surged, others}, failing, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newReplicaLedger().Count(now, deploymentOf(tt.replicas, tt.change), replicasOf(slices.Concat(tt.pods...)))
			if w.Excess != tt.excess || w.Lacking != tt.lacking {
				t.Errorf("%d in excess, %d lacking; want %d, %d", w.Excess, w.Lacking, tt.excess, tt.lacking)
			}
		})
	}
}

// What was asked for counts before it shows.
func TestLedgerGivesBackNoMoreThanIsLacking(t *testing.T) {
	d := deploymentOf(2, func(d *Deployment) {
		d.Status.Conditions = []deploymentCondition{{Type: "ReplicaFailure", Status: "True"}}
	})
	pods := []*corev1.Pod{webPod("a", isSurgedPod), webPod("b", isSurgedPod), webPod("c", createdAt(now))}
	l := newReplicaLedger()
	if !l.reserve(now, d, replicasOf(pods), pods[0], Return, 0) || l.reserve(now, d, replicasOf(pods), pods[1], Return, 0) {
		t.Error("want one pod to be given back")
	}
	pods[0] = webPod("a", createdAt(now.Add(-time.Hour)))
	if w, _ := l.Count(now, d, replicasOf(pods)); w.Lacking != 0 {
		t.Errorf("%d lacking when it is back, want 0", w.Lacking)
	}
	*d.Spec.Replicas = 0
	if !l.reserve(now, d, replicasOf(pods), pods[1], End, 0) || l.reserve(now, d, replicasOf(pods), pods[1], End, 0) {
		t.Error("want the other to be ended, once")
	}
}
