package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"spot-handler/e2e/sim"
	"spot-handler/handler/interruption"
)

// twoNodes is a scene for commands: the pods are on spot-0.
func twoNodes() sim.Scene {
	return sim.Scene{
		Seed: 1, Intake: sim.IntakeQueue, Karpenter: sim.Karpenter{Boot: 20 * time.Second},
		Nodes: []sim.Node{
			{Name: "spot-0", Pool: sim.PoolSpot, Zone: "eu-west-1a", CPU: 4000},
			{Name: "spot-1", Pool: sim.PoolSpot, Zone: "eu-west-1a", CPU: 4000},
		},
		Workloads: []sim.Workload{{Name: "web", Kind: "Deployment", Replicas: 2, CPU: 1000, Grace: 10, Stop: time.Second, Start: time.Second}},
	}
}

// runIn runs a command in a scene's cluster, 20 s after its start, with the daemon running.
func runIn(t *testing.T, scene sim.Scene, args []string, command func(commonFlags) *cobra.Command) (output string, err error) {
	t.Helper()
	during(t, scene, 20*time.Second, func(ctx context.Context, world *sim.World) {
		cmd := command(commonFlags{cluster: simCluster(world.Client("operator"))})
		var stdout, stderr bytes.Buffer
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		cmd.SetIn(strings.NewReader(""))
		cmd.SetArgs(args)
		err = cmd.ExecuteContext(ctx)
		output = stdout.String() + stderr.String()
	})
	return output, err
}

// during plays a scene with the daemon running, and does something in its cluster after a while.
func during(t *testing.T, scene sim.Scene, wait time.Duration, do func(context.Context, *sim.World)) {
	t.Helper()
	p := newPlayer(t)
	synctest.Test(t, func(t *testing.T) {
		world := sim.New(scene)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go world.Run(ctx)
		p.start(t, world)
		time.Sleep(wait)
		do(ctx, world)
		world.End()
		time.Sleep(calmsDown)
	})
}

const drained = "every pod has left"

// rehearse shows the plan, each change and the outcome, and can judge it by the exit code.
func TestRehearseCommand(t *testing.T) {
	for name, tt := range map[string]struct {
		args    []string
		budget  string
		want    []string
		wantErr string
	}{
		"as required": {
			[]string{"spot-0", "--yes", "--require=left=0"}, "",
			[]string{
				"1 node lost: 2 pods, 2 graceful", "on 1 node: spot-0.", "each node is put back into service", "evicted, with 10 of 10 s to end",
				drained, "back in service", "2 of 2 pods ended as forecast",
			}, "",
		},
		"not as required":   {[]string{"spot-0", "--yes", "--require=slack=1h"}, "", []string{drained, "broken: slack=1h"}, "slack=1h"},
		"nobody to ask":     {[]string{"spot-0", "--release"}, "", []string{"1 node lost: 2 pods", "each node is terminated"}, "give --yes"},
		"too large a share": {[]string{"spot-0", "spot-1", "--yes"}, "", nil, "--max-share=10 allows 1"},
		"allowed to be all": {
			[]string{"spot-0", "spot-1", "--yes", "--max-share=100", "--over=5s"}, "",
			[]string{drained, "on 2 nodes, begun over 5s: spot-0, spot-1"}, "",
		},
		"pods that never leave":       {[]string{"spot-0", "--yes"}, "maxUnavailable=0", nil, "SH101 shop poddisruptionbudget/web"},
		"such pods on another node":   {[]string{"spot-1", "--yes"}, "maxUnavailable=0", []string{"on 1 node: spot-1."}, ""},
		"such pods, despite findings": {[]string{"spot-0", "--yes", "--despite-findings"}, "maxUnavailable=0", []string{"2 pods had to leave: 2 not evicted"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scene := twoNodes()
			scene.Workloads[0].Budget = tt.budget
			output, err := runIn(t, scene, tt.args, func(all commonFlags) *cobra.Command { return (&rehearseCommand{commonFlags: all}).command() })
			sees(t, output, err, tt.want, tt.wantErr)
		})
	}
}

// observe shows what happens to the nodes until everything is over.
func TestObserveCommand(t *testing.T) {
	for name, tt := range map[string]struct {
		args    []string
		want    []string
		wantErr string
	}{
		"a node":       {[]string{"spot-0"}, []string{"watching; Ctrl-C ends it", "noticed: spot-interruption", drained, "2 pods had to leave: 2 graceful"}, ""},
		"all":          {[]string{"--all", "--require=left=0"}, []string{drained, "the Node is gone"}, ""},
		"all and some": {[]string{"--all", "spot-0"}, nil, "give the names of nodes, or --all"},
		"neither":      {nil, nil, "give the names of nodes, or --all"},
	} {
		t.Run(name, func(t *testing.T) {
			scene := twoNodes()
			scene.Losses = []sim.Loss{{
				Node: "spot-0", Kind: interruption.SpotInterruption, At: 25 * time.Second, Lead: interruption.SpotNotice, Delay: time.Second, Copies: 1, Takes: true,
			}}
			output, err := runIn(t, scene, tt.args, func(all commonFlags) *cobra.Command { return (&observeCommand{commonFlags: all}).command() })
			sees(t, output, err, tt.want, tt.wantErr)
		})
	}
}

func sees(t *testing.T, output string, err error, want []string, wantErr string) {
	t.Helper()
	if (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
		t.Errorf("%v, want %q", err, wantErr)
	}
	for _, text := range want {
		if !strings.Contains(output, text) {
			t.Errorf("%q is missing from\n%s", text, output)
		}
	}
}
