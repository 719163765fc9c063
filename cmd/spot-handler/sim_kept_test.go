package main

import (
	"testing"
	"time"

	"spot-handler/e2e/sim"
	"spot-handler/handler/interruption"
)

// Scenes that have broken an invariant, with what was wrong.

// The lease was lost more often than --rebalance-ttl passes. Each leader took what was before its time for progress,
// so the drain of a recommended node with a pod that stays never ended.
func TestSceneLeaseIsLostAgainAndAgain(t *testing.T) {
	scene := sim.DrawScene(700756)
	scene.Workloads[3].Zone = "" // as it was drawn then
	scene.Faults[0].From, scene.Faults[0].For = 85797*time.Millisecond, 10300*time.Millisecond
	keepsInvariants(t, scene)
}

// Two pods share a PDB, on two nodes, and one of the nodes is cancelled. The other's pod was to go in the first wave,
// was decided about again in that moment, and no longer had to: nothing planned when it does, so it was never evicted.
func TestSceneWaveIsNotNeededAnyMore(t *testing.T) {
	scene := sim.DrawScene(9900291)
	scene.Losses[0].Hibernates, scene.Losses[0].Lead = false, interruption.SpotNotice // as it was drawn then
	scene.Losses[0].Early = -10685 * time.Millisecond
	keepsInvariants(t, scene)
}

// A group with hooks on launch and on termination waits no longer than it has to.
func TestSceneGroupWaitsAtItsHooks(t *testing.T) {
	keepsInvariants(t, sim.Scene{
		Seed: 1, Intake: sim.IntakeQueue, Flags: []string{"--provisioner=asg", "--replacement-ttl=1m", "--rebalance-ttl=4m"},
		Karpenter: sim.Karpenter{Boot: 30 * time.Second},
		Nodes: []sim.Node{
			{Name: "spot-0", Pool: sim.PoolSpot, Zone: "eu-west-1a", CPU: 4000},
			{Name: "spot-1", Pool: sim.PoolSpot, Zone: "eu-west-1a", CPU: 4000},
			{Name: "calm-0", Pool: sim.PoolFallback, Zone: "eu-west-1a", CPU: 4000},
		},
		Workloads: []sim.Workload{{Name: "web", Kind: "Deployment", Replicas: 6, CPU: 1000, Grace: 30, Stop: time.Hour, Start: time.Second}},
		Losses:    []sim.Loss{{Node: "spot-0", Kind: interruption.RebalanceRecommendation, At: 20 * time.Second, Delay: time.Second, Copies: 1}},
		Groups:    sim.Groups{Manage: true, Hook: 5 * time.Minute, Launches: true},
		ScaleIns:  []sim.ScaleIn{{Node: "spot-1", At: 15 * time.Second}},
	})
}

// EC2 withdraws a retirement while a replica that is cut off from the queue holds its announcement. The withdrawal is
// handled first and matches nothing; when the announcement is delivered again, it must not drain the node.
func TestSceneWithdrawnBeforeItArrives(t *testing.T) {
	keepsInvariants(t, sim.Scene{
		Seed: 600000069, Flags: []string{"--replacement-ttl=1m", "--rebalance-ttl=4m", "--scheduled-lead=2m"},
		Nodes: []sim.Node{{Name: "spot-2", Pool: sim.PoolSpot, Zone: "eu-west-1a", CPU: 8000}},
		Losses: []sim.Loss{{
			Node: "spot-2", Kind: interruption.ScheduledEvent, At: 56561 * time.Millisecond, Delay: 2106 * time.Millisecond, Copies: 1,
			Lead: 413525 * time.Millisecond, Early: -17682 * time.Millisecond, Withdrawn: 86281 * time.Millisecond,
		}},
		Faults:    []sim.Fault{{What: "queue", Replica: 1, From: 53458 * time.Millisecond, For: 16009 * time.Millisecond}},
		Karpenter: sim.Karpenter{Boot: 25625 * time.Millisecond},
		Groups:    sim.Groups{Manage: true, Placeholders: true},
	})
}
