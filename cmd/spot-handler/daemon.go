package main

import "github.com/spf13/cobra"

func newIMDS(getenv func(string) string) *cobra.Command {
	return newDaemon(modeIMDS, getenv, &cobra.Command{
		Use:   "imds --node-name=NAME",
		Short: "Watch this node's instance metadata service; runs on every spot node, as a DaemonSet",
		Long: `Watches this node's instance metadata service. On a notice, it cordons the node,
requests a replacement, and drains the node before EC2 reclaims it. With --drain=false
it only marks the node, and spot-handler drain or queue drains it. That process sees
all nodes, so maxSurge and pool limits hold when several are lost together.

The metadata service answers a pod only with hostNetwork, or with a hop limit of 2
on the instance. AWS_EC2_METADATA_SERVICE_ENDPOINT points elsewhere.`,
		Example: `  # log what would be done on this node, and touch nothing
  spot-handler imds --node-name=ip-10-0-1-2.ec2.internal --dry-run

  # mark the node only; spot-handler drain drains it
  NODE_NAME=ip-10-0-1-2.ec2.internal spot-handler imds --drain=false`,
	})
}

func newQueue(getenv func(string) string) *cobra.Command {
	return newDaemon(modeQueue, getenv, &cobra.Command{
		Use:   "queue --queue-url=URL",
		Short: "Consume the SQS queue that EventBridge feeds, and drain; runs as a Deployment with a leader",
		Long: `Consumes the SQS queue that EventBridge feeds with the notices of all instances. If a
notice is about a node of this cluster, it cordons the node, requests a replacement, and
drains the node before EC2 reclaims it. All replicas accept notices; the leader drains.

Region, credentials and endpoints come from the AWS SDK's variables: AWS_REGION,
AWS_ENDPOINT_URL_SQS and so on.`,
		Example: `  # log what would be done, and leave the messages in the queue
  spot-handler queue --dry-run \
    --queue-url=https://sqs.eu-west-1.amazonaws.com/123456789012/spot-handler

  # replace the nodes of the NodePool batch from the NodePool batch-fallback
  spot-handler queue --fallback-nodepool=batch=batch-fallback \
    --queue-url=https://sqs.eu-west-1.amazonaws.com/123456789012/spot-handler`,
	})
}

// newDaemon makes cmd the command of a mode.
func newDaemon(mode string, getenv func(string) string, cmd *cobra.Command) *cobra.Command {
	cfg := settings{mode: mode}
	addGroups(cmd, cfg.define())
	cmd.Long += "\n\nEvery flag can be given as a variable: --dry-run is " + variable("dry-run") + ".\nA flag overrides its variable."
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	readsVariables(cmd, getenv, cfg.check, func(cmd *cobra.Command) error {
		return serve(cmd.Context(), cfg, cmd.ErrOrStderr())
	})
	return cmd
}

func newDrain(getenv func(string) string) *cobra.Command {
	return newDaemon(modeDrain, getenv, &cobra.Command{
		Use:   "drain",
		Short: "Drain the nodes that imds has marked; runs as a Deployment with a leader",
		Long: `Drains the nodes that spot-handler imds --drain=false has marked. It requests a
replacement, and drains the node before EC2 reclaims it. The leader drains all nodes, so
PDBs, maxSurge and pool limits hold across them.

It needs no queue, and calls nothing in AWS.`,
		Example: `  # beside a DaemonSet that marks nodes: spot-handler imds --drain=false
  spot-handler drain

  # replace the nodes of the NodePool batch from the NodePool batch-fallback
  spot-handler drain --fallback-nodepool=batch=batch-fallback`,
	})
}
