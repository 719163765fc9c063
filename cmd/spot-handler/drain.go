package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newDrain(getenv func(string) string) *cobra.Command {
	return newDaemon(modeDrain, getenv, &cobra.Command{
		Use:   "drain",
		Short: "Drain the nodes that imds has marked; runs once per cluster, as a Deployment",
		Long: `Drains the nodes that spot-handler imds --drain=false has marked: requests a
replacement, and drains the node before EC2 takes it. One replica drains all nodes, so
disruption budgets, maxSurge, limits and turns count for all of them together.

It needs no queue, and calls nothing in AWS.`,
		Example: `  # beside a DaemonSet that marks nodes: spot-handler imds --drain=false
  spot-handler drain

  # replace the nodes of the NodePool batch from the NodePool batch-fallback
  spot-handler drain --fallback-nodepool=batch=batch-fallback`,
	})
}

// marked is the source of a process that takes no notices: the Nodes have them already.
type marked struct{}

func (marked) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (marked) Healthy() error { return nil }
