package main

import (
	"testing"

	"spot-handler/e2e/sim"
)

// Scenes that have broken an invariant, with what was wrong.

// The lease was lost more often than --rebalance-ttl passes. Each leader took what was before its time for progress,
// so the drain of a recommended node with a pod that stays never ended.
func TestSceneLeaseIsLostAgainAndAgain(t *testing.T) {
	keepsInvariants(t, sim.DrawScene(700756))
}

// Two pods share a PDB, on two nodes, and one of the nodes is cancelled. The other's pod was to go in the first wave,
// was decided about again in that moment, and no longer had to: nothing planned when it does, so it was never evicted.
func TestSceneWaveIsNotNeededAnyMore(t *testing.T) {
	keepsInvariants(t, sim.DrawScene(9900291))
}
