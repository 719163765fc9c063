package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"spot-handler/e2e/sim"
)

// What the comparison with a real control plane gives a round, see e2e/sim/reality.
const (
	simScene   = "SIM_SCENE"   // the file of the scene
	simUntil   = "SIM_UNTIL"   // how long it is looked at
	simPlays   = "SIM_PLAYS"   // how often
	simAccount = "SIM_ACCOUNT" // the file for what became of all, in each play
)

// TestSimAccount plays the scene of a file, and writes what becomes of its pods and nodes into another.
func TestSimAccount(t *testing.T) {
	file := os.Getenv(simScene)
	if file == "" {
		t.Skip("it plays a scene that " + simScene + " names")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var scene sim.Scene
	if err := json.Unmarshal(text, &scene); err != nil {
		t.Fatal(err)
	}
	until, err := time.ParseDuration(os.Getenv(simUntil))
	if err != nil {
		t.Fatal(err)
	}
	p := newPlayer(t)
	var all []sim.Fates
	for range number(t, simPlays, 1) {
		p.account = sim.NewAccount(scene, until)
		if broken, _ := p.play(scene); len(broken) > 0 { // TestSim's invariants have bounds for smaller scenes
			t.Logf("breaks\n%s", strings.Join(broken, "\n"))
		}
		all = append(all, p.account.Fates())
	}
	if text, err = json.Marshal(all); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv(simAccount), text, 0o600); err != nil {
		t.Fatal(err)
	}
}
