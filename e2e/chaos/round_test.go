package main

import (
	"testing"

	"spot-handler/e2e/chaos/plan"
)

// One short round, always the same: losses of all sorts, while replicas and both servers
// fail. `make chaos` plays others.
func TestRound(t *testing.T) { play(t, "queue") }

// The same round, where each node is marked by a process of its own.
func TestRoundOfMarkedNodes(t *testing.T) { play(t, "imds") }

func play(t *testing.T, mode string) {
	t.Helper()
	sum, err := run(t.Context(), options{seed: 22, mode: mode, first: 1, only: true, size: plan.Short, dir: t.TempDir(), out: t.Output()})
	t.Log(sum)
	if err != nil {
		t.Fatal(err)
	}
}
