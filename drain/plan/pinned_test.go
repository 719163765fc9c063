package plan

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A pod that was made in the second of the cordon is evicted though its grace period is longer than the time
// left: once it is known whether it comes back, and with what time is left then.
func TestLongGraceInTheSecondOfTheCordon(t *testing.T) {
	cordon := now.Add(300 * time.Millisecond)
	for lead, want := range map[time.Duration]time.Duration{
		2 * time.Minute:  10 * time.Second,
		16 * time.Second: 8 * time.Second,
	} {
		in := NodeState{Taint: taint, Since: cordon, Capacity: ReadyCapacity, Deadline: now.Add(lead)}
		p := pod("p", ownedBy("ReplicaSet"), withGrace(300), createdAt(now))
		sit := Situation{Pods: []*corev1.Pod{p}, NodeState: in, Policy: Policy{Strategy: StrategyAtOnce, Margin: 5 * time.Second}}
		before, at := Plan(now.Add(want-time.Millisecond), sit)[0], Plan(now.Add(want), sit)[0]
		if before.Action != Hold || !before.Until.Equal(now.Add(want)) {
			t.Errorf("%s before the end: %s until %s, want it held until %s", lead, before.Action, before.Until, now.Add(want))
		}
		if grace := int64((lead - want - 5*time.Second) / time.Second); at.Action != Evict || at.Grace == nil || *at.Grace != grace {
			t.Errorf("%s after it came: %s with a grace of %v s, want its eviction with %d", want, at.Action, at.Grace, grace)
		}
	}
}

// A tenant's ReplicaSet whose template names the node has each evicted pod back in the same moment.
// That ends: each replica is evicted at most twice, however the drain goes, and another tenant's pod
// is evicted as without.
func TestReplicaSetPinnedToTheNode(t *testing.T) {
	const replicas = 100
	for name, tt := range map[string]struct {
		policy Policy
		grace  int64
		lead   time.Duration
	}{
		"surge":                    {Policy{Strategy: StrategySurge, Margin: 10 * time.Second}, 0, 2 * time.Minute},
		"hold":                     {Policy{Strategy: StrategyHold, Margin: 10 * time.Second}, 30, 2 * time.Minute},
		"at once":                  {Policy{Strategy: StrategyAtOnce, Margin: 10 * time.Second}, 0, 2 * time.Minute},
		"no time left":             {Policy{Strategy: StrategyAtOnce, Margin: 10 * time.Second}, 0, 8 * time.Second},
		"longer than there is":     {Policy{Strategy: StrategyAtOnce, Margin: 10 * time.Second}, 300, 2 * time.Minute},
		"the node is only at risk": {Policy{Strategy: StrategyAtOnce, Margin: 10 * time.Second}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			in := NodeState{Taint: taint, Since: now, Capacity: ReadyCapacity}
			if tt.lead > 0 {
				in.Deadline = now.Add(tt.lead)
			}
			made := 0
			pinned := func(at time.Time) *corev1.Pod {
				made++
				p := pod(fmt.Sprint("pinned-", made), ownedBy("ReplicaSet"), withGrace(tt.grace), createdAt(at.Truncate(time.Second)))
				p.UID = types.UID(p.Name)
				return p
			}
			var pods []*corev1.Pod
			for range replicas {
				pods = append(pods, pinned(now.Add(-time.Hour)))
			}
			other := pod("other", withGrace(0), createdAt(now.Add(-time.Hour)))
			evictions, otherGone := 0, false
			for at := now; at.Before(now.Add(2 * time.Minute)); at = at.Add(100 * time.Millisecond) {
				all := pods
				if !otherGone {
					all = append([]*corev1.Pod{other}, pods...)
				}
				var next []*corev1.Pod
				for _, d := range Plan(at, Situation{Pods: all, NodeState: in, Policy: tt.policy}) {
					switch {
					case d.Pod == other:
						otherGone = otherGone || d.Action == Evict
					case d.Action == Evict:
						evictions++
						next = append(next, pinned(at))
					default:
						next = append(next, d.Pod)
					}
				}
				pods = next
			}
			if evictions < replicas || evictions > 2*replicas {
				t.Errorf("%d evictions of %d replicas, want each once or twice", evictions, replicas)
			}
			if !otherGone {
				t.Error("another tenant's pod was not evicted")
			}
		})
	}
}
