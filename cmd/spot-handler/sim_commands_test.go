package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"spot-handler/e2e/sim"
)

// Who rehearses sees the plan, each change and the outcome, and can have the exit code judge it.
func TestRehearseCommand(t *testing.T) {
	const drained = "every pod has left"
	for name, tt := range map[string]struct {
		args    []string
		want    []string
		wantErr string
	}{
		"as required": {
			[]string{"spot-0", "--yes", "--require=left=0"},
			[]string{
				"1 node lost: 2 pods, 2 graceful", "on 1 node: spot-0.", "each node is put back into service", "evicted, with 10 of 10 s to end",
				drained, "back in service", "2 of 2 pods ended as forecast",
			}, "",
		},
		"not as required":   {[]string{"spot-0", "--yes", "--require=slack=1h"}, []string{drained, "broken: slack=1h"}, "slack=1h"},
		"nobody to ask":     {[]string{"spot-0", "--release"}, []string{"1 node lost: 2 pods", "each node is terminated"}, "give --yes"},
		"too large a share": {[]string{"spot-0", "spot-1", "--yes"}, nil, "--max-share=10 allows 1"},
		"allowed to be all": {[]string{"spot-0", "spot-1", "--yes", "--max-share=100", "--over=5s"}, []string{drained, "on 2 nodes, begun over 5s: spot-0, spot-1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlayer(t)
			synctest.Test(t, func(t *testing.T) {
				world := sim.New(sim.Scene{
					Seed: 1, Intake: sim.IntakeQueue, Karpenter: sim.Karpenter{Boot: 20 * time.Second},
					Nodes: []sim.Node{
						{Name: "spot-0", Pool: sim.PoolSpot, Zone: "eu-west-1a", CPU: 4000},
						{Name: "spot-1", Pool: sim.PoolSpot, Zone: "eu-west-1a", CPU: 4000},
					},
					Workloads: []sim.Workload{{Name: "web", Kind: "Deployment", Replicas: 2, CPU: 1000, Grace: 10, Stop: time.Second, Start: time.Second}},
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go world.Run(ctx)
				world.Start(func(l sim.Launch) sim.Process {
					own := p.conf.Copy()
					own.HTTPClient = l.AWS
					return startProcess(t, world, l, own, p.level)
				})
				time.Sleep(20 * time.Second)
				var stdout, stderr bytes.Buffer
				cmd := (&rehearseCommand{commonFlags: commonFlags{cluster: &rest.Config{
					Host: "http://api.sim", Transport: world.Client("operator"),
					ContentConfig: rest.ContentConfig{ContentType: kruntime.ContentTypeJSON, AcceptContentTypes: kruntime.ContentTypeJSON},
				}}}).command()
				cmd.SilenceUsage, cmd.SilenceErrors = true, true
				cmd.SetOut(&stdout)
				cmd.SetErr(&stderr)
				cmd.SetIn(strings.NewReader(""))
				cmd.SetArgs(tt.args)
				err := cmd.ExecuteContext(ctx)
				if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("%v, want %q", err, tt.wantErr)
				}
				for _, want := range tt.want {
					if !strings.Contains(stdout.String(), want) {
						t.Errorf("%q is missing from\n%s\n%s", want, &stdout, &stderr)
					}
				}
				world.End()
				time.Sleep(calmsDown)
			})
		})
	}
}
