package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func apartBy(key, app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			}},
		}}
	}
}

func spreadBy(key string, otherwise corev1.UnsatisfiableConstraintAction) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			TopologyKey: key, WhenUnsatisfiable: otherwise, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}
	}
}

// A pod goes back only where its own presence keeps its replacement pod away, and only when that has
// had its time with all replacements Ready.
func TestSuccessorThatFindsNoPlace(t *testing.T) {
	const zone = corev1.LabelTopologyZone
	late := now.Add(-placeFor)
	for name, tt := range map[string]struct {
		change   func(*corev1.Pod)
		unplaced int
		ready    time.Time // of all replacements
		capacity Capacity
		want     Action
		again    bool // looks again later
	}{
		"one to a zone":                  {apartBy(zone, "web"), 1, late, ReadyCapacity, Return, false},
		"spread over zones":              {spreadBy(zone, corev1.DoNotSchedule), 1, late, ReadyCapacity, Return, false},
		"spread, if possible":            {spreadBy(zone, corev1.ScheduleAnyway), 1, late, ReadyCapacity, Hold, false},
		"one to a node":                  {apartBy(corev1.LabelHostname, "web"), 1, late, ReadyCapacity, Hold, false},
		"apart from others":              {apartBy(zone, "db"), 1, late, ReadyCapacity, Hold, false},
		"no room":                        {func(*corev1.Pod) {}, 1, late, ReadyCapacity, Hold, false},
		"it has a place":                 {apartBy(zone, "web"), 0, late, ReadyCapacity, Hold, false},
		"a moment before":                {apartBy(zone, "web"), 1, late.Add(time.Second), ReadyCapacity, Hold, true},
		"another node's is not Ready":    {apartBy(zone, "web"), 1, time.Time{}, ReadyCapacity, Hold, true},
		"its node's is not Ready":        {apartBy(zone, "web"), 1, late, PendingCapacity, Hold, false},
		"its node has none":              {apartBy(zone, "web"), 1, late, NoCapacity, Hold, false},
		"in a moment it is too late too": {func(p *corev1.Pod) { apartBy(zone, "web")(p); withGrace(110)(p) }, 1, late, ReadyCapacity, Evict, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := surging(DeploymentState{Unplaced: tt.unplaced}, webPod("a", isSurgedPod, tt.change))
			s.Capacity, s.AllReady = tt.capacity, map[types.NamespacedName]time.Time{web: tt.ready}
			d := Plan(now, s)[0]
			if d.Action != tt.want {
				t.Errorf("%s (%s), want %s", d.Action, d.Reason, tt.want)
			}
			if d.Until.After(now) != tt.again {
				t.Errorf("looks again at %s, want that only while it waits: %t", d.Until, tt.again)
			}
		})
	}
}
