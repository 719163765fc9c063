package sim

import (
	"slices"
	"testing"

	"spot-handler/handler/interruption"
)

// Whatever a scene can be made of is drawn now and then.
func TestDrawSceneHasAll(t *testing.T) {
	workload := func(has func(Workload) bool) func(Scene) bool {
		return func(s Scene) bool { return slices.ContainsFunc(s.Workloads, has) }
	}
	loss := func(has func(Loss) bool) func(Scene) bool {
		return func(s Scene) bool { return slices.ContainsFunc(s.Losses, has) }
	}
	kinds := map[string]func(Scene) bool{
		"webhook":           func(s Scene) bool { return s.Webhook > 0 },
		"limit":             func(s Scene) bool { return s.Karpenter.Limit > 0 },
		"reserved machines": func(s Scene) bool { return s.Karpenter.Reserved > 0 },
		"many pods":         workload(func(w Workload) bool { return w.Replicas >= 40 }),
		"long grace period": workload(func(w Workload) bool { return w.Grace == longGrace }),
		"tolerates":         workload(func(w Workload) bool { return w.Tolerates }),
		"zone":              workload(func(w Workload) bool { return w.Zone != "" && w.ZoneBy == ebsZone }),
		"hibernates":        loss(func(l Loss) bool { return l.Hibernates && l.Takes && l.Lead == 0 }),
		"renews":            loss(func(l Loss) bool { return l.Renews && l.Cancel > 0 }),
		"only recommends": func(s Scene) bool {
			other := func(l Loss) bool { return l.Kind != interruption.RebalanceRecommendation && l.Warned == 0 }
			return len(s.Losses) > 2 && !slices.ContainsFunc(s.Losses, other)
		},
		"webhook that stays": func(s Scene) bool {
			return slices.ContainsFunc(s.Faults, func(f Fault) bool { return f.What == FaultAdmit && f.For == longest })
		},
		"interrupted after it was scheduled": func(s Scene) bool {
			return slices.ContainsFunc(s.Losses, func(l Loss) bool {
				return slices.ContainsFunc(s.Losses, func(m Loss) bool { return m.Node == l.Node && m.Kind != l.Kind })
			})
		},
	}
	for name, has := range kinds {
		found := 0
		for seed := range uint64(2000) {
			if has(DrawScene(seed)) {
				found++
			}
		}
		if found < 5 {
			t.Errorf("%s: %d of 2000 scenes", name, found)
		}
	}
}
