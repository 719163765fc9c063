package sim

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// What a scene fails of is left, and nothing else.
func TestShrink(t *testing.T) {
	kills := func(f Fault) bool { return f.What == FaultKill }
	guarded := func(w Workload) bool { return w.Kind == "StatefulSet" && w.Budget != "" && w.Replicas >= 2 }
	fails := func(s Scene) bool {
		return slices.ContainsFunc(s.Faults, kills) && slices.ContainsFunc(s.Workloads, guarded) && len(s.Losses) > 0 && s.Rates.Lag > 0
	}
	found := 0
	for seed := range uint64(2000) {
		s := DrawScene(seed)
		if !fails(s) {
			continue
		}
		found++
		before := s.AsTest()
		small := Shrink(s, fails)
		if s.AsTest() != before {
			t.Fatalf("seed %d: the scene itself was changed", seed)
		}
		want := Rates{Lag: s.Rates.Lag}
		if !fails(small) || len(small.Faults) != 1 || len(small.Workloads) != 1 || len(small.Losses) != 1 || len(small.Nodes) != 1 ||
			len(small.Flags) != 3 /* the TTLs and the lead */ || small.Rates != want || small.Workloads[0].Replicas > 3 {
			t.Errorf("seed %d: %+v is left", seed, small)
		}
	}
	if found < 3 {
		t.Errorf("%d of the scenes fail, too few to show anything", found)
	}
}

// The test that a scene is printed as names all that the scene is made of.
func TestSceneAsTest(t *testing.T) {
	s := Scene{Seed: 7, Nodes: []Node{{Name: "spot-0", Pool: PoolSpot}}, Losses: []Loss{{Node: "spot-0", At: time.Second, Takes: true}}}
	text := s.AsTest()
	for _, want := range []string{"func TestScene7(t *testing.T) {", "keepsInvariants(t, sim.Scene{", `Name:"spot-0"`, "At:1000000000", "Takes:true"} {
		if !strings.Contains(strings.ReplaceAll(text, ": ", ":"), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
