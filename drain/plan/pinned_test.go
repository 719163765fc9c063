package plan

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

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
