package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/e2e/sim"
	"spot-handler/handler/interruption"
)

// asks plays an operator who keeps asking for the status during a round, and checks each answer against the cluster.
func asks(ctx context.Context, world *sim.World) {
	status := statusIn(ctx, world)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(world.NextAsk()):
			world.Ask(status)
		}
	}
}

// statusIn runs the command in a world, and returns what it prints for programs.
func statusIn(ctx context.Context, world *sim.World) func(node string) ([]byte, error) {
	operator := simCluster(world.Client("operator"))
	return func(node string) ([]byte, error) {
		var stdout bytes.Buffer
		var cmd cobra.Command // no flags: cobra keeps them globally for completion, and they would keep the world alive
		cmd.SetContext(ctx)
		cmd.SetOut(&stdout)
		cmd.SetErr(io.Discard)
		s := statusCommand{commonFlags: commonFlags{cluster: operator, format: console.JSON}, node: node}
		err := s.run(&cmd, nil)
		return stdout.Bytes(), err
	}
}

// Status is checked against the cluster: a lie breaks the round.
func TestStatusIsJudged(t *testing.T) {
	scene := twoNodes()
	scene.Losses = []sim.Loss{{
		Node: "spot-0", Kind: interruption.SpotInterruption, At: 20 * time.Second, Lead: interruption.SpotNotice, Delay: time.Second, Copies: 1, Takes: true,
	}}
	change := func(path string, to any) func(map[string]any) {
		return func(said map[string]any) {
			list, _ := said["interruptions"].([]any)
			for _, one := range append(list, said) {
				at, ok := one.(map[string]any)
				keys := strings.Split(path, ".")
				for _, key := range keys[:len(keys)-1] {
					at, ok = at[key].(map[string]any)
				}
				if ok {
					at[keys[len(keys)-1]] = to
				}
			}
		}
	}
	for name, lie := range map[string]func(map[string]any){
		"":                               func(map[string]any) {},
		"another phase":                  change("phase", "Released"),
		"it is over":                     change("over", true),
		"a pod too many":                 change("pods.here", 3),
		"pods terminating":               change("pods.terminating", 2),
		"more time":                      change("secondsLeft", 119),
		"another replacement":            change("replacement.name", "somebody"),
		"it waits for the wrong thing":   change("waitsFor", "its lifecycle hook to be completed"),
		"it waits for nothing":           change("waitsFor", ""),
		"it waits for something unknown": change("waitsFor", "Godot"),
		"no node":                        func(said map[string]any) { said["interruptions"] = []any{} },
		"unread":                         func(said map[string]any) { said["unread"] = []any{"pods"} },
		"a pod that may stay":            func(said map[string]any) { delete(said, "onNode") },
	} {
		t.Run(name, func(t *testing.T) {
			during(t, scene, 30*time.Second+time.Millisecond, func(ctx context.Context, world *sim.World) {
				status := statusIn(ctx, world)
				world.Ask(func(node string) ([]byte, error) {
					text, err := status(node)
					if err != nil {
						return nil, err
					}
					var said map[string]any
					if err := json.Unmarshal(text, &said); err != nil {
						t.Fatal(err)
					}
					lie(said)
					return json.Marshal(said)
				})
				if broken := world.Broken(); (len(broken) > 0) != (name != "") {
					t.Errorf("broken: %q", broken)
				}
			})
		})
	}
}
