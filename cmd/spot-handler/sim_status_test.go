package main

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/e2e/sim"
)

// asks plays an operator who keeps asking for the status during a round, and checks each answer against the cluster.
func asks(ctx context.Context, world *sim.World) {
	operator := simCluster(world.Client("operator"))
	status := func(node string) ([]byte, error) {
		var stdout bytes.Buffer
		var cmd cobra.Command // no flags: cobra keeps them globally for completion, and they would keep the world alive
		cmd.SetContext(ctx)
		cmd.SetOut(&stdout)
		cmd.SetErr(io.Discard)
		s := statusCommand{commonFlags: commonFlags{cluster: operator, format: console.JSON}, node: node}
		err := s.run(&cmd, nil)
		return stdout.Bytes(), err
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(world.NextAsk()):
			world.Ask(status)
		}
	}
}
