package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A DaemonSet's pod that asks for it leaves once all others have gone, at the latest at its eviction deadline, and
// what its DaemonSet then puts on the node stays. One that says nothing, or anything else, stays.
func TestDaemonThatGoesLast(t *testing.T) {
	shipper := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := pod("shipper", annotated(WhenAnnotation, "last"), ownedBy("DaemonSet"))
		for _, c := range change {
			c(p)
		}
		return p
	}
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} }
	everything := tolerating("")
	for name, tt := range map[string]struct {
		daemon *corev1.Pod
		others []*corev1.Pod
		change func(*Situation)
		action Action
		reason string
	}{
		"others are there":               {shipper(), []*corev1.Pod{pod("web")}, nil, Hold, "spot-handler/when=last: goes after all other pods"},
		"others are on their way out":    {shipper(), []*corev1.Pod{pod("web", ending)}, nil, Hold, "spot-handler/when=last: goes after all other pods"},
		"others have finished":           {shipper(), []*corev1.Pod{pod("import", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, nil, Evict, "all other pods have gone"},
		"others stay":                    {shipper(), []*corev1.Pod{pod("proxy", ownedBy("DaemonSet"))}, nil, Evict, "all other pods have gone"},
		"all have gone":                  {shipper(), nil, nil, Evict, "all other pods have gone"},
		"another asks for the same":      {shipper(), []*corev1.Pod{pod("cache", annotated(WhenAnnotation, "last"), ownedBy("DaemonSet"))}, nil, Evict, "all other pods have gone"},
		"it tolerates everything":        {shipper(everything), []*corev1.Pod{pod("web")}, nil, Hold, "spot-handler/when=last: goes after all other pods"},
		"its deadline has come":          {shipper(withGrace(110)), []*corev1.Pod{pod("web")}, nil, Evict, "eviction deadline has come"},
		"only at risk, others are there": {shipper(), []*corev1.Pod{pod("web")}, func(s *Situation) { s.Deadline = time.Time{} }, Hold, "spot-handler/when=last: goes after all other pods"},
		"only at risk, all have gone":    {shipper(), nil, func(s *Situation) { s.Deadline = time.Time{} }, Evict, "all other pods have gone"},
		"it was put back": {shipper(func(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{Time: now} }), nil,
			func(s *Situation) { s.Since = now.Add(-time.Minute) }, Skip, "its DaemonSet has put it on this node since the node was marked"},
		"it asks to go now":        {pod("agent", annotated(WhenAnnotation, "now"), ownedBy("DaemonSet")), nil, nil, Skip, "DaemonSet pod"},
		"its namespace asks":       {pod("agent", ownedBy("DaemonSet")), nil, func(s *Situation) { s.Namespaces = map[string]Preferences{"shop": {When: WhenLast}} }, Skip, "DaemonSet pod"},
		"it wants to stay by name": {shipper(tolerating(taint.Key)), nil, nil, Skip, "tolerates " + taint.Key},
	} {
		t.Run(name, func(t *testing.T) {
			s := surging(DeploymentState{Slots: 1}, append(tt.others, tt.daemon)...)
			s.Capacity = ReadyCapacity
			if tt.change != nil {
				tt.change(&s)
			}
			for _, d := range Plan(now, s) {
				if d.Pod == tt.daemon && (d.Action != tt.action || d.Reason != tt.reason) {
					t.Errorf("%s: %s, want %s: %s", d.Action, d.Reason, tt.action, tt.reason)
				}
			}
		})
	}
}

// spot-handler's own pod waits for those of DaemonSets, as nobody else evicts them, and they do not wait for it.
func TestDaemonGoesBeforeOurselves(t *testing.T) {
	daemon, self := pod("shipper", annotated(WhenAnnotation, "last"), ownedBy("DaemonSet")), pod("self")
	s := surging(DeploymentState{}, daemon, self)
	s.Capacity, s.Policy.Self = ReadyCapacity, types.NamespacedName{Namespace: self.Namespace, Name: self.Name}
	for _, d := range Plan(now, s) {
		if want := map[*corev1.Pod]Action{daemon: Evict, self: Hold}[d.Pod]; d.Action != want {
			t.Errorf("%s: %s: %s, want %s", d.Pod.Name, d.Action, d.Reason, want)
		}
	}
}

// A DaemonSet's pod needs no place on another node: the replacement has one of its own.
func TestDaemonThatLeavesNeedsNoHome(t *testing.T) {
	daemon, web := pod("shipper", annotated(WhenAnnotation, "last"), ownedBy("DaemonSet")), pod("web")
	view := ViewOf(Plan(now, surging(DeploymentState{}, daemon, web)))
	if home := view.Homeless(); len(home) != 1 || home[0] != web {
		t.Errorf("%d pods need a home, want web alone", len(home))
	}
	if len(view.Moving) != 2 || len(view.Daemons) != 1 {
		t.Errorf("%d move, %d are of DaemonSets, want 2 and 1", len(view.Moving), len(view.Daemons))
	}
}
