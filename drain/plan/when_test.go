package plan

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestWhen(t *testing.T) {
	goNow, hold, last := annotated(WhenAnnotation, "now"), annotated(WhenAnnotation, "hold"), annotated(WhenAnnotation, "last")
	pinned, unknown := annotated(DoNotDisrupt, "true"), annotated(WhenAnnotation, "soon")
	const ofNamespace = " of its namespace"
	for name, tt := range map[string]struct {
		pod       *corev1.Pod
		namespace When
		strategy  Strategy
		capacity  Capacity
		risk      bool
		action    Action
		reason    string
	}{
		"now":                                 {webPod("a", goNow), "", StrategySurge, PendingCapacity, false, Evict, "spot-handler/when=now"},
		"now, held":                           {pod("a", goNow), "", StrategyHold, PendingCapacity, false, Evict, "spot-handler/when=now"},
		"now, surged before":                  {webPod("a", goNow, isSurgedPod), "", StrategySurge, PendingCapacity, false, Evict, "spot-handler/when=now"},
		"now, no deadline":                    {webPod("a", goNow), "", StrategySurge, PendingCapacity, true, Hold, "no deadline: waits for a replacement"},
		"now, no deadline, replaced":          {webPod("a", goNow), "", StrategySurge, ReadyCapacity, true, Evict, "spot-handler/when=now"},
		"now, past its latest start":          {webPod("a", goNow, withGrace(110)), "", StrategySurge, PendingCapacity, false, Evict, "eviction deadline has come"},
		"now overrides do-not-disrupt":        {webPod("a", goNow, pinned), "", StrategySurge, PendingCapacity, false, Evict, "spot-handler/when=now"},
		"now, no deadline, do-not-disrupt":    {webPod("a", goNow, pinned), "", StrategySurge, ReadyCapacity, true, Hold, "no deadline: " + DoNotDisrupt},
		"now, tolerates every taint":          {pod("a", goNow, tolerating("")), "", StrategyHold, PendingCapacity, false, Hold, everyTaint},
		"now, of a Job":                       {pod("a", goNow, ownedBy("Job")), "", StrategyHold, PendingCapacity, false, Evict, "spot-handler/when=now"},
		"hold is not surged":                  {webPod("a", hold), "", StrategySurge, PendingCapacity, false, Hold, "waits for the replacement"},
		"hold, replaced":                      {webPod("a", hold), "", StrategySurge, ReadyCapacity, false, Evict, "replacement is ready"},
		"hold, at once":                       {pod("a", hold), "", StrategyAtOnce, PendingCapacity, false, Hold, "waits for the replacement"},
		"hold, at once, no replacement":       {pod("a", hold), "", StrategyAtOnce, NoCapacity, false, Evict, "nothing to wait for"},
		"hold, at its latest start":           {webPod("a", hold, withGrace(110)), "", StrategySurge, PendingCapacity, false, Evict, "eviction deadline has come"},
		"hold, surged before":                 {webPod("a", hold, isSurgedPod), "", StrategySurge, ReadyCapacity, false, Hold, "surged: waits for its replacement pod"},
		"hold overrides do-not-disrupt":       {pod("a", hold, pinned), "", StrategyHold, ReadyCapacity, false, Evict, "replacement is ready"},
		"last":                                {webPod("a", last), "", StrategySurge, ReadyCapacity, false, Hold, "spot-handler/when=last"},
		"last, at once":                       {pod("a", last), "", StrategyAtOnce, NoCapacity, false, Hold, "spot-handler/when=last"},
		"last, surged before":                 {webPod("a", last, isSurgedPod), "", StrategySurge, ReadyCapacity, false, Hold, "spot-handler/when=last"},
		"last, at its latest start":           {webPod("a", last, withGrace(110)), "", StrategySurge, ReadyCapacity, false, Evict, "eviction deadline has come"},
		"last, no deadline":                   {webPod("a", last), "", StrategySurge, ReadyCapacity, true, Hold, "no deadline: spot-handler/when=last"},
		"last, no deadline, surged before":    {webPod("a", last, isSurgedPod), "", StrategySurge, ReadyCapacity, true, Hold, "surged: waits for its replacement pod"},
		"of the namespace":                    {webPod("a"), WhenNow, StrategySurge, PendingCapacity, false, Evict, "spot-handler/when=now" + ofNamespace},
		"the pod's own":                       {webPod("a", last), WhenNow, StrategySurge, ReadyCapacity, false, Hold, "spot-handler/when=last"},
		"the pod's own do-not-disrupt":        {webPod("a", pinned), WhenNow, StrategySurge, ReadyCapacity, false, Hold, DoNotDisrupt},
		"unknown":                             {webPod("a", unknown), "", StrategySurge, PendingCapacity, false, SurgeNow, "its replacement pod is made first"},
		"unknown, and one of the namespace's": {webPod("a", unknown), WhenLast, StrategySurge, ReadyCapacity, false, Hold, "spot-handler/when=last" + ofNamespace},
		"unknown of the namespace":            {webPod("a"), "soon", StrategySurge, PendingCapacity, false, SurgeNow, "its replacement pod is made first"},
	} {
		t.Run(name, func(t *testing.T) {
			s := surging(DeploymentState{Slots: 1}, tt.pod)
			s.Policy.Strategy, s.Capacity = tt.strategy, tt.capacity
			s.Namespaces = map[string]Preferences{"shop": {When: tt.namespace}}
			if tt.risk {
				s.Deadline = time.Time{}
			}
			d := decided(s, tt.pod)
			if d.Action != tt.action || d.Reason != tt.reason {
				t.Errorf("%s (%s), want %s (%s)", d.Action, d.Reason, tt.action, tt.reason)
			}
		})
	}
}

// Until it is known what its namespace asks for, no pod leaves that has no deadline, nor one that has,
// unless its eviction deadline, its gang or its wave says so.
func TestNamespaceNotKnown(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Situation, *corev1.Pod)
		want   Action
	}{
		"at risk, replaced":           {func(s *Situation, _ *corev1.Pod) { s.Deadline = time.Time{} }, Hold},
		"replaced":                    {func(*Situation, *corev1.Pod) {}, Hold},
		"at its eviction deadline":    {func(_ *Situation, pod *corev1.Pod) { withGrace(110)(pod) }, Evict},
		"its wave has come":           {func(s *Situation, pod *corev1.Pod) { s.Starts = map[types.UID]time.Time{pod.UID: now} }, Evict},
		"at risk, and says so itself": {func(s *Situation, pod *corev1.Pod) { s.Deadline = time.Time{}; annotated(WhenAnnotation, "now")(pod) }, Evict},
	} {
		t.Run(name, func(t *testing.T) {
			a := pod("a")
			s := surging(DeploymentState{}, a)
			s.Policy.Strategy, s.Capacity, s.Namespaces = StrategyHold, ReadyCapacity, map[string]Preferences{}
			tt.change(&s, a)
			if d := decided(s, a); d.Action != tt.want {
				t.Errorf("%s (%s), want %s", d.Action, d.Reason, tt.want)
			}
		})
	}
}

// The wave of a budget comes before the pod's own preference to be last.
func TestLastGoesWithItsWave(t *testing.T) {
	a := webPod("a", annotated(WhenAnnotation, "last"))
	s := surging(DeploymentState{}, a)
	s.Starts = map[types.UID]time.Time{a.UID: now}
	if d := decided(s, a); d.Action != Evict {
		t.Errorf("%s (%s)", d.Action, d.Reason)
	}
}
