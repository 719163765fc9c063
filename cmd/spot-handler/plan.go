package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/selection"
	"spot-handler/cmd/spot-handler/terminal"
	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
	"spot-handler/handler/provisioner"
)

// planCommand is what the operator has asked `plan` for.
type planCommand struct {
	cluster  console.Cluster
	format   console.Format
	nodes    selection.Selection
	kind     string
	deadline time.Duration
	dryRun   string

	assumed assumptionFlags
}

func newPlan() *cobra.Command {
	p := &planCommand{}
	cmd := &cobra.Command{
		Use:   "plan [NODE...]",
		Short: "Tell what would become of every pod if nodes were taken now",
		Long: `Tells what would happen if EC2 took these nodes now: when each pod's eviction begins,
what it waits for and what becomes of it, when each node is empty, and how many pods
of each workload and disruption budget are ready meanwhile. It changes nothing.

The nodes are named, or chosen by what they have in common. Every decision about a
pod is made by the function that the drain itself runs, with the settings of the pod
of spot-handler in the cluster. What nobody can know beforehand is assumed: each
assumption is shown with its source, and has a flag.

With --dry-run=server it also sends the API server the evictions, the patches that begin
a surge and the replacements, as dry runs with your own permissions, and shows what
admission webhooks, quotas and budgets refuse. audit finds missing permissions.

It reads the cluster as kubectl does, with your own rights, and says what it could
not read. The exit code is 0 if everything was read, 1 if not, and 2 is wrong use.`,
		Example: `  # one node
  spot-handler plan ip-10-0-1-2.ec2.internal

  # all nodes of one instance type in one zone, which EC2 often takes together
  spot-handler plan --instance-type=m5.large --zone=eu-west-1a

  # would the API server refuse any of it?
  spot-handler plan --pool=batch --dry-run=server

  # pods that would not end gracefully
  spot-handler plan --pool=batch -o json | jq -r '.pods[] |
    select(.outcome != "graceful") | "\(.namespace)/\(.name) \(.outcome): \(.reason)"'`,
		ValidArgsFunction: completeNodes(&p.cluster),
	}
	which, what, assume, show, where := titled("Nodes"), titled("Interruption"), titled("Assumptions"), titled("Output"), titled("Cluster")
	p.nodes.Define(which.FlagSet)
	what.StringVar(&p.kind, "kind", string(interruption.SpotInterruption), "what happens to them: "+strings.Join(names(interruption.Kinds()), ", "))
	what.DurationVar(&p.deadline, "deadline", 0, "time from the notice until EC2 takes them, or from the start of the drain with a scheduled event (default: what is usual for the kind, such as 2m after a spot notice)")
	what.StringVar(&p.dryRun, "dry-run", "none", "server: ask the API server what it would refuse, with dry runs of evictions, surges and replacements")
	p.assumed.define(assume)
	p.format.Define(show.FlagSet)
	p.cluster.Define(where.FlagSet)
	p.cluster.DefineDaemon(where.FlagSet)
	addGroups(cmd, []group{which, what, assume, show, where})
	complete(cmd, &p.cluster, map[string]cobra.CompletionFunc{
		"dry-run": cobra.FixedCompletions(dryRuns, cobra.ShellCompDirectiveNoFileComp),
		"kind":    cobra.FixedCompletions(names(interruption.Kinds()), cobra.ShellCompDirectiveNoFileComp),
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return p.run(cmd.Context(), args, cmd.Flags(), cmd.OutOrStdout())
	}
	return cmd
}

func (p *planCommand) run(ctx context.Context, args []string, flags *pflag.FlagSet, stdout io.Writer) error {
	if err := p.validate(args); err != nil {
		return err
	}
	c, err := connectCaller(p.cluster)
	if err != nil {
		return err
	}
	l := loss{
		Blow: plan.Blow{Kind: interruption.Kind(p.kind)}, nodes: p.nodes.Of, dryRun: p.dryRun == dryRunServer,
		assume: func(a *plan.Assumptions) { p.assumed.take(a, flags) },
	}
	if flags.Changed("deadline") {
		l.Deadline = &p.deadline
	}
	f, err := c.foresee(ctx, cluster.Read(ctx, cluster.Lister{Client: c.core, Namespace: p.cluster.Namespace}, true), l)
	if err != nil {
		return err
	}
	screen := terminal.New(stdout)
	if p.format == console.TableFormat {
		err = screen.Print(plan.Lines(f, screen.Columns())...)
	} else {
		err = p.format.Write(screen, f)
	}
	if err == nil && len(f.Unread) > 0 {
		err = fmt.Errorf("could not read everything: %s", strings.Join(f.Unread, "; "))
	}
	return err
}

func (p *planCommand) validate(args []string) error {
	switch {
	case !slices.Contains(interruption.Kinds(), interruption.Kind(p.kind)):
		return fmt.Errorf("%w: --kind=%s: want one of %s", errUsage, p.kind, strings.Join(names(interruption.Kinds()), ", "))
	case !slices.Contains(dryRuns, p.dryRun):
		return fmt.Errorf("%w: --dry-run=%s: want one of %s", errUsage, p.dryRun, strings.Join(dryRuns, ", "))
	case min(p.deadline, p.assumed.boot, p.assumed.ready, p.assumed.stop, p.assumed.detach) < 0:
		return fmt.Errorf("%w: times must not be negative", errUsage)
	}
	if err := p.nodes.Take(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return nil
}

// loss is what a forecast is asked for.
type loss struct {
	plan.Blow // without the daemon's settings
	// nodes picks those that are lost.
	nodes func(all []*corev1.Node) ([]*corev1.Node, error)
	// assume takes what the caller knows better in place of everything else.
	assume func(*plan.Assumptions)
	// dryRun has the API server asked.
	dryRun bool
}

// errNothing says that there is nothing to make a forecast from.
var errNothing = errors.New("nodes and pods could not be read")

// foresee plays the interruption in the cluster that was read.
func (c *caller) foresee(ctx context.Context, read cluster.Cluster, l loss) (plan.Report, error) {
	in := plan.Input{Cluster: read, Assumptions: plan.Assumed()}
	in.Assumptions.ReadyOf = plan.ReadyOf(in.Pods)
	if len(in.Nodes) == 0 || in.Pods == nil {
		return plan.Report{}, fmt.Errorf("%w: %s", errNothing, strings.Join(in.Unread, "; "))
	}
	lost, err := l.nodes(in.Nodes)
	if err != nil {
		return plan.Report{}, err
	}
	cfg, from, err := c.settings(ctx, lost[0].Name)
	if err != nil {
		return plan.Report{}, err
	}
	in.Settings = from
	in.Policy = drain.Policy{Strategy: drain.Strategy(cfg.strategy), Blocked: drain.BlockedPolicy(cfg.blocked), Margin: cfg.margin}
	l.ScheduledLead = cfg.scheduledLead
	l.Release = cfg.release && cfg.provisioner != provisioner.None
	plan.Lose(&in, lost, l.Blow)
	plan.Underway(&in, lost)
	asked, err := c.ask(cfg, l.dryRun)
	if err != nil {
		return plan.Report{}, err
	}
	first := asked.replace(ctx, &in)
	c.boot(ctx, &in)
	l.assume(&in.Assumptions)
	r := plan.Report{Forecast: plan.Of(in)}
	if asked.trial != nil {
		err = asked.try(ctx, first)
		answers := asked.trial.Answers()
		r.DryRun = &answers
	}
	return r, err
}

// Whether the API server is asked.
const dryRunServer = "server"

var dryRuns = []string{"none", dryRunServer}

// assumptionFlags are those of commands that forecast.
type assumptionFlags struct{ boot, ready, stop, detach time.Duration }

func (f *assumptionFlags) define(flags group) {
	assumed := plan.Assumed()
	flags.DurationVar(&f.boot, "boot-time", assumed.Boot.Duration(), "how long a replacement takes from its request until it takes pods (default: by the history of its NodePool, and this where there is none)")
	flags.DurationVar(&f.ready, "ready-time", assumed.Ready.Duration(), "how long a pod takes from having a node to being Ready (default: by the history of its workload's pods, and this where there is none)")
	flags.DurationVar(&f.stop, "stop-time", assumed.Stop.Duration(), "how long a pod takes to end, but not longer than its grace period")
	flags.DurationVar(&f.detach, "detach-time", assumed.Detach.Duration(), "how long volumes take to be detached once their pods are gone")
}

// take takes what flags say in place of everything else.
func (*assumptionFlags) take(a *plan.Assumptions, flags *pflag.FlagSet) {
	for flag, of := range map[string]*plan.Assumption{"boot-time": &a.Boot, "ready-time": &a.Ready, "stop-time": &a.Stop, "detach-time": &a.Detach} {
		if flags.Changed(flag) {
			d, _ := flags.GetDuration(flag) // it is one
			*of = plan.Assume(d, "--"+flag)
		}
	}
	if flags.Changed("ready-time") {
		a.ReadyOf = nil
	}
}

// completeNodes offers the nodes that are not named yet.
func completeNodes(of *console.Cluster) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeIn)
		defer cancel()
		c, err := connectCaller(*of)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		list, err := nodes.List(ctx, c.nodes, metav1.ListOptions{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var offered []cobra.Completion
		for i := range list.Items {
			if n := &list.Items[i]; strings.HasPrefix(n.Name, typed) && !slices.Contains(args, n.Name) {
				offered = append(offered, cobra.CompletionWithDesc(n.Name, nodes.PoolOf(n).Name))
			}
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}
