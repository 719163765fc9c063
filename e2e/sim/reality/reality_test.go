package reality

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"spot-handler/e2e/sim"
)

// A long run takes other scenes.
var (
	seed   = flag.Uint64("seed", 1, "of the first scene")
	rounds = flag.Int("rounds", 0, "how many control planes, one after the other, each second one with Karpenter; 0: one of each")
	scenes = flag.Int("scenes", 3, "scenes on each")
	plays  = flag.Int("plays", 3, "how often the simulator plays them")
	keep   = flag.String("keep", "", "`directory` for scenes and what became of them")
	again  = flag.String("again", "", "`directory` of scenes that were kept, which the simulator alone plays again")
)

// What has to be alike, in percent. A node is only if pods are that came to it later, which is a matter of chance.
const (
	endsAlike  = 95
	timesAlike = 90
	nodesAlike = 60

	tries = 3 // a machine that is busy for a moment can spoil a round: it is played again
)

// TestReality plays scenes on real control planes and in the simulator.
func TestReality(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sim.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", program, "spot-handler/cmd/spot-handler").CombinedOutput(); err != nil {
		t.Fatalf("build the simulator: %v\n%s", err, out)
	}
	var mu sync.Mutex
	var all, itself tally
	count := func(one, two tally) {
		mu.Lock()
		defer mu.Unlock()
		all.add(one)
		itself.add(two)
	}
	switch {
	case *again != "":
		files, err := filepath.Glob(filepath.Join(*again, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			t.Run(filepath.Base(file), func(t *testing.T) {
				r := read(t, file)
				count(r.against(t, simulate(t, program, r.Scene)))
			})
		}
	case *rounds > 0:
		for i := range *rounds {
			t.Run(fmt.Sprintf("round-%d", i), func(t *testing.T) {
				count(playBoth(t, program, *seed+uint64(i**scenes), i%2 == 1))
			})
		}
	default:
		t.Run("short", func(t *testing.T) {
			for i, karpenter := range []bool{false, true} {
				t.Run(fmt.Sprintf("karpenter-%t", karpenter), func(t *testing.T) {
					t.Parallel()
					count(playShort(t, program, *seed+uint64(i**scenes), karpenter))
				})
			}
		})
	}
	t.Logf("real and simulated: %s", &all)
	t.Logf("simulated twice:    %s", &itself)
	if !all.alike() {
		t.Errorf("less than %d%% of the ends of pods are alike, %d%% of the times, or %d%% of the nodes", endsAlike, timesAlike, nodesAlike)
	}
}

// round is what was played, and what became of it on the real control plane.
type round struct {
	Scene sim.Scene
	Was   sim.Fates
}

// playShort plays a round again that is not alike.
func playShort(t *testing.T, program string, seed uint64, karpenter bool) (one, itself tally) {
	t.Helper()
	for try := range tries {
		fine := t.Run(fmt.Sprintf("try-%d", try), func(t *testing.T) { one, itself = playBoth(t, program, seed, karpenter) })
		if !fine || one.alike() {
			break
		}
	}
	return one, itself
}

func playBoth(t *testing.T, program string, seed uint64, karpenter bool) (one, itself tally) {
	t.Helper()
	var r round
	r.Scene, r.Was = play(t, draw(seed, *scenes, karpenter), karpenter)
	if *keep != "" {
		r.write(t, filepath.Join(*keep, fmt.Sprintf("%d-%t.json", seed, karpenter)))
	}
	return r.against(t, simulate(t, program, r.Scene))
}

// against compares the round with what the simulator said, and what it said the first time with the others.
func (r round) against(t *testing.T, said []sim.Fates) (one, itself tally) {
	t.Helper()
	one = compare(r.Scene, r.Was, said[0])
	t.Logf("%s\nflags %q\n%s", &one, r.Scene.Flags, strings.Join(one.notes, "\n"))
	for _, other := range said[1:] {
		itself.add(compare(r.Scene, said[0], other))
	}
	return one, itself
}

// simulate plays a scene in the simulator, several times: Go chooses the order of goroutines.
func simulate(t *testing.T, program string, scene sim.Scene) (said []sim.Fates) {
	t.Helper()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "scene.json"), filepath.Join(dir, "account.json")
	writeJSON(t, in, scene)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run", "^TestSimAccount$", "-test.v")
	cmd.Env = append(os.Environ(), "SIM_SCENE="+in, "SIM_ACCOUNT="+out, "SIM_UNTIL="+ends(scene).String(), fmt.Sprintf("SIM_PLAYS=%d", *plays))
	log, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("simulate: %v\n%s", err, log)
	}
	if strings.Contains(string(log), "breaks") {
		t.Logf("%s", log)
	}
	readJSON(t, out, &said)
	if len(said) == 0 {
		t.Fatal("the simulator says nothing")
	}
	return said
}

func (r round) write(t *testing.T, file string) {
	t.Helper()
	writeJSON(t, file, r)
}

func read(t *testing.T, file string) (r round) {
	t.Helper()
	readJSON(t, file, &r)
	return r
}

func writeJSON(t *testing.T, file string, value any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func readJSON(t *testing.T, file string, value any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, value)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}
