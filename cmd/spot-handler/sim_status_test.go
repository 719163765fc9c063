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

// asks is an operator who asks for the status again and again while a round is played, and compares it to what is so.
func asks(ctx context.Context, world *sim.World) {
	operator := simCluster(world.Client("operator"))
	status := func(node string) ([]byte, error) {
		var stdout bytes.Buffer
		var cmd cobra.Command // one with flags would be remembered for their completion, and with it the world
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
