package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A seed that found something is of use only if the same round comes of it again.
func TestRoundsAreAFunctionOfTheSeed(t *testing.T) {
	for number := range 50 {
		if diff := cmp.Diff(Draw(7, number, Full), Draw(7, number, Full)); diff != "" {
			t.Fatalf("round %d differs from itself: %s", number, diff)
		}
	}
	if cmp.Equal(Draw(7, 1, Full).Steps, Draw(7, 2, Full).Steps) || cmp.Equal(Draw(7, 1, Full).Steps, Draw(8, 1, Full).Steps) {
		t.Error("other rounds, or other seeds, are the same")
	}
}

// Everything that can happen does, within a reasonable number of rounds, to nodes, replicas
// and services that there are, and no node comes to two ends.
func TestRoundsHaveEverything(t *testing.T) {
	seen, asked := map[What]int{}, map[string]bool{}
	for seed := range uint64(200) {
		r := Draw(seed, 1, Full)
		for _, s := range r.Services {
			asked["when "+s.When], asked["answer "+s.Notices] = true, true
			asked["gang"] = asked["gang"] || s.Gang
		}
		ends := map[int]int{}
		for i, s := range r.Steps {
			seen[s.What]++
			if s.Node >= Nodes || s.Replica > Leader || s.Service >= len(r.Services) {
				t.Fatalf("seed %d: %s is about what there is not", seed, s)
			}
			if s.Announces() && s.What != Recommend {
				ends[s.Node]++
			}
			if i > 0 && s.At < r.Steps[i-1].At {
				t.Fatalf("seed %d: steps are not in order:\n%s", seed, r)
			}
			if s.IsFault() && s.At+s.For > faultsUntil {
				t.Errorf("seed %d: %s is not over after %s", seed, s, faultsUntil)
			}
		}
		for node, n := range ends {
			if n > 1 {
				t.Errorf("seed %d: node %d comes to %d ends", seed, node, n)
			}
		}
		if len(ends) == Nodes {
			t.Errorf("seed %d: no node stays", seed)
		}
	}
	for _, what := range []What{
		Interrupt, Stop, Reserve, Recommend, Shutdown, Repeat, SecondID, Cancel, Duplicate, Cordon, Kill, Terminate, Pause,
		CutAPI, SlowAPI, ThrottleAPI, FailAPI, LoseAPI, FreezeAPI, CutQueue, SlowQueue, ThrottleQueue, FailQueue, LoseQueue,
		Roll, Scale, Remove, Refuse, Loosen,
	} {
		if seen[what] == 0 {
			t.Errorf("%q never happens", what)
		}
		delete(seen, what)
	}
	for _, what := range []string{"when now", "when hold", "when last", "gang", "answer " + Silence, "answer " + Hang, "answer " + Nonsense, "answer now", "answer last"} {
		if !asked[what] {
			t.Errorf("no service has %q", what)
		}
	}
	if len(seen) > 0 {
		t.Errorf("not known here: %v", seen)
	}
}
