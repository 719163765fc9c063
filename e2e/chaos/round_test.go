package main

import (
	"testing"

	"spot-handler/e2e/chaos/plan"
)

// One short round, always the same: losses of all sorts, while replicas and both servers
// fail. `make chaos` plays others.
func TestRound(t *testing.T) {
	sum, err := run(t.Context(), options{seed: 22, first: 1, only: true, size: plan.Short, dir: t.TempDir(), out: t.Output()})
	t.Log(sum)
	if err != nil {
		t.Fatal(err)
	}
}
