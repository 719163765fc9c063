package drain

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A node that is only at risk has no deadline, and nothing is done to its pods before the
// replacement is Ready, nor ever past a budget or against their owner's wish: however long
// it takes, with every strategy.
func TestNoHurryWithoutADeadline(t *testing.T) {
	years := now.Add(10 * 365 * 24 * time.Hour)
	for _, strategy := range Strategies() {
		for _, capacity := range []Capacity{NoCapacity, PendingCapacity, ReadyCapacity} {
			pods := []*corev1.Pod{
				pod("plain"), pod("pinned", annotated(doNotDisrupt, "true")), pod("job", ownedBy("Job")), webPod("web"), webPod("surged", isSurgedPod),
			}
			s := surging(Workload{Slots: 1}, pods...)
			s.Interruption = Interruption{Taint: taint, Capacity: capacity}
			s.Policy = Policy{Strategy: strategy, Blocked: Delete, Margin: 10 * time.Second}
			s.Refused = map[types.UID]bool{}
			for _, p := range pods {
				s.Refused[p.UID] = true
			}
			want := "job hold, pinned hold, plain hold, surged hold, web hold"
			if capacity == ReadyCapacity {
				want = map[Strategy]string{
					Surge:  "job hold, pinned hold, plain evict, surged hold, web surge",
					Hold:   "job hold, pinned hold, plain evict, surged hold, web evict",
					AtOnce: "job hold, pinned hold, plain evict, surged evict, web evict",
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
			if pods := podsInWaves(now, s); pods != nil {
				t.Errorf("waves of %v, want none", pods)
			}
		}
	}
}
