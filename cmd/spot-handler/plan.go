package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/drain/narrow"
	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
)

// planCommand is what the operator has asked `plan` for.
type planCommand struct {
	commonFlags
	nodes   selection
	loss    plan.Loss
	assumed plan.Assumptions
	dryRun  string
}

func newPlan() *cobra.Command {
	p := &planCommand{}
	cmd := &cobra.Command{
		Use:   "plan [NODE...]",
		Short: "Forecast each pod's fate if these nodes were interrupted now",
		Long: `Forecasts what would happen if EC2 interrupted these nodes now: when each pod is evicted,
what it waits for, and how it ends; when each node is empty; and how many pods of each
workload and PDB are ready meanwhile. It changes nothing.

Name the nodes, or choose them by what they have in common. The drain's own functions
decide about every pod, with the settings of spot-handler's pods in the cluster. What
nobody can know beforehand is assumed. Each assumption is shown with its source, and
has a flag.

With --dry-run=server, it also sends the API server the evictions, the patches that start
a surge, and the replacements, as dry runs with your own permissions. It shows what
admission webhooks, quotas and PDBs refuse. audit finds missing permissions.

It reads the cluster as kubectl does, with your own permissions, and says what it
couldn't read. Exit codes: 0 if everything was read, 1 if not, 2 for wrong use.`,
		Example: `  # one node
  spot-handler plan ip-10-0-1-2.ec2.internal

  # all nodes of one instance type in one zone, which EC2 often takes together
  spot-handler plan --instance-type=m5.large --zone=eu-west-1a

  # would the API server refuse any of it?
  spot-handler plan --pool=batch --dry-run=server

  # pods that would not end gracefully
  spot-handler plan --pool=batch -o json | jq -r '.pods[] |
    select(.outcome != "graceful") | "\(.namespace)/\(.name) \(.outcome): \(.reason)"'`,
		ValidArgsFunction: p.completeNodes(anyNode),
	}
	which, what, assume, show := titled("Nodes"), titled("Interruption"), titled("Assumptions"), titled("Output")
	p.nodes.define(which)
	oneOf(what, (*string)(&p.loss.Kind), "kind", string(interruption.SpotInterruption), names(interruption.Kinds()),
		"what happens to them: "+strings.Join(names(interruption.Kinds()), ", "))
	within(what, &p.loss.Deadline, "deadline", 0, anyTime,
		"time from the notice until EC2 takes them; with a scheduled event, from the start of the drain "+
			"(default: what is usual for the kind, such as 2m after a spot notice)")
	oneOf(what, &p.dryRun, "dry-run", "none", []string{"none", dryRunServer},
		"server: ask the API server what it would refuse, with dry runs of evictions, surges and replacements")
	defineAssumptions(assume, &p.assumed)
	p.define(cmd, show, which, what, assume)
	cmd.RunE = p.run
	return cmd
}

func (p *planCommand) run(cmd *cobra.Command, args []string) error {
	ctx := cmd.Context()
	if err := p.nodes.parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	c, err := p.connect()
	if err != nil {
		return err
	}
	read, err := c.read(ctx, p.namespace)
	if err != nil {
		return err
	}
	lost, err := p.nodes.choose(read.Nodes)
	if err != nil {
		return err
	}
	f, err := c.forecast(ctx, read, lost, p.loss, p.assumed, &plan.Requests{DryRun: p.dryRun == dryRunServer})
	if err != nil {
		return err
	}
	err = p.print(cmd.OutOrStdout(), f, func(columns int) []string { return plan.Lines(f, columns) })
	if err == nil && len(f.Unread) > 0 {
		err = fmt.Errorf("could not read everything: %s", strings.Join(f.Unread, "; "))
	}
	return err
}

// read reads the cluster, or one namespace of it, for a forecast. An error says that there is nothing to
// make one from.
func (c *caller) read(ctx context.Context, namespace string) (cluster.Cluster, error) {
	read := cluster.ReadForForecast(ctx, cluster.Lister{Client: c.whole.core, Namespace: namespace})
	if len(read.Nodes) == 0 || read.Pods == nil {
		return read, fmt.Errorf("nodes and pods could not be read: %s", strings.Join(read.Unread, "; "))
	}
	return read, nil
}

// forecast plays the loss of nodes in the cluster that was read. What the daemon
// would change is asked of requests.
func (c *caller) forecast(
	ctx context.Context, read cluster.Cluster, lost []*corev1.Node, loss plan.Loss, assumed plan.Assumptions, requests *plan.Requests,
) (plan.Forecast, error) {
	cfg, err := c.settings(ctx, namesOf(lost)...)
	if err != nil {
		return plan.Forecast{}, err
	}
	dry, err := connectDry(c.conf, narrow.Transport, requests.Over)
	if err != nil {
		return plan.Forecast{}, err
	}
	taken := offerings.New()
	if asksKarpenter(cfg.settings) {
		kept := slices.DeleteFunc(slices.Clone(read.Nodes), func(n *corev1.Node) bool { return slices.Contains(lost, n) })
		taken, err = c.remembered(ctx, kept)
		if err != nil {
			read.Unread = append(slices.Clone(read.Unread), err.Error())
		}
	}
	marked := map[string]*corev1.Node{}
	over := backing{
		cfg:     cfg.settings,
		clients: dry,
		taken:   taken,
		logger:  zerolog.Nop(),
		node: func(name string) (*corev1.Node, bool) {
			node, lost := marked[name]
			return node, lost
		},
	}
	over.room = newRoom(over)
	pools, provider := newProvisioner(over)
	defer pools.Close()
	daemon := plan.Daemon{
		Policy:        cfg.policy,
		Settings:      cfg.from,
		Rules:         rulesOf(cfg.settings, pools),
		DeletesClaims: cfg.release && cfg.provisioner != provisioner.None,
		Provisioner:   provider,
		Pools:         pools,
		Core:          dry.core,
		Requests:      requests,
		Offerings:     taken,
		Marked:        marked,
		Boots: func(ctx context.Context, pool string) ([]time.Duration, error) {
			return karpenter.BootTimes(ctx, c.whole.dynamic, pool)
		},
	}
	return daemon.Forecast(ctx, read, lost, loss, assumed)
}

// dryRunServer has the API server asked.
const dryRunServer = "server"

// anyTime is not in the past.
var anyTime = bounds{0, ever, true, "0s or more"}

// defineAssumptions declares the flags of commands that forecast, for what they assume because nobody
// can know it.
func defineAssumptions(flags group, assumed *plan.Assumptions) {
	*assumed = plan.Assumed()
	of := func(name string, to *plan.Assumption, usage string) {
		given := to.Duration()
		within(flags, &given, name, given, anyTime, usage)
		f := flags.Lookup(name)
		f.Value = checked{f.Value, func() error { *to = plan.Assume(given, "--"+name); return nil }, nil}
	}
	of("boot-time", &assumed.Boot,
		"how long a replacement takes from its request until it takes pods (default: from the history of its "+
			"NodePool, or "+assumed.Boot.Duration().String()+" if there is none)")
	of("ready-time", &assumed.Ready,
		"how long a pod takes from being scheduled to being Ready (default: from the history of its "+
			"workload's pods, or "+assumed.Ready.Duration().String()+" if there is none)")
	of("stop-time", &assumed.Stop, "how long a pod takes to end, but not longer than its grace period")
	of("detach-time", &assumed.Detach, "how long volumes take to be detached once their pods are gone")
}
