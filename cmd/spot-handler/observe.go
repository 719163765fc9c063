package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/report"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
)

// errRequired is what ends a command that was asked to fail because of what happened.
var errRequired = errors.New("not as --require asks")

// observeCommand is what the operator has asked `observe` for.
type observeCommand struct {
	asked
	all     bool
	outcome outcomeFlags
}

// outcomeFlags are those of commands that see interruptions to their end.
type outcomeFlags struct {
	report  string
	require []report.Requirement
}

func (f *outcomeFlags) define(flags group) {
	flags.StringVar(&f.report, "report", "", "write a report to this `file`: a page of HTML that needs nothing else")
	meaning(flags, &f.require, "require", "", report.ParseRequirements, "exit with 3 unless it ends as these `requirements` say, such as left=0,dip=0,slack=20s")
}

func newObserve() *cobra.Command {
	o := &observeCommand{}
	cmd := &cobra.Command{
		Use:   "observe [NODE…]",
		Short: "Follow interruptions to their end, and write a report of them",
		Long: `Follows interruptions live: how far each node has come, each pod that has to leave, and
how many pods of their workloads are ready at every moment. When all are over it
sums up, and writes a report. It changes nothing.

Start it before the interruption, or while one is under way: it waits for the first,
however long that takes. Ctrl-C ends it earlier, with what was seen by then.

It watches the cluster with your own permissions, and says what it could not watch. The
exit code is 0 if the nodes could be watched, else 1; 2 is wrong use, and 3 says that
it did not end as --require asks.`,
		Example: `  # the next interruption of this node, with a report
  spot-handler observe ip-10-0-1-2.ec2.internal --report=interruption.html

  # all that are under way; fail if a pod was left, or a workload lost a ready pod
  spot-handler observe --all --require=left=0,dip=0`,
	}
	what, show := titled("What"), titled("Output")
	what.BoolVar(&o.all, "all", false, "follow all nodes that are interrupted")
	o.outcome.define(show)
	o.define(cmd, show, what)
	cmd.RunE = o.run
	return cmd
}

func (o *observeCommand) run(cmd *cobra.Command, nodes []string) error {
	if o.all == (len(nodes) > 0) {
		return fmt.Errorf("%w: give the names of nodes, or --all", errUsage)
	}
	stdout, stderr := cmd.OutOrStdout(), cmd.ErrOrStderr()
	c, err := o.connect()
	if err != nil {
		return err
	}
	observer := observe.New(time.Now(), nodes...)
	screen := o.live(stdout, stderr)
	defer screen.End()
	watching := func() { fmt.Fprintln(stderr, "watching; Ctrl-C ends it") }
	if err := c.follow(cmd.Context(), observer, o.namespace, screen, watching); err != nil {
		return err
	}
	screen.End()
	return o.outcome.conclude(report.Of(observer.Recording(time.Now()), nil), &o.asked, stdout, stderr)
}

// frame is the time between two pictures.
const frame = 250 * time.Millisecond

// follow shows what the observer sees until all is over or ctx ends, which is no error. ready, if
// it is not nil, is called when everything is watched. On a screen that is not live each change
// is a line.
func (c *caller) follow(ctx context.Context, observer *observe.Observer, namespace string, screen *console.Screen, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cluster := observe.Cluster{Core: c.core, Policy: c.policy, Dynamic: c.dynamic, Namespace: namespace}
	watched := make(chan error, 1)
	go func() { watched <- cluster.Watch(ctx, observer, ready) }()
	ticker := time.NewTicker(frame)
	defer ticker.Stop()
	printed := map[string]bool{}
	show := func(now time.Time) {
		if screen.Live() {
			screen.Show(observer.View(now, screen.Columns(), screen.Rows()))
			return
		}
		r := observer.Recording(now)
		for _, h := range r.Happenings() {
			if line := h.Line(r.Begin(), len(r.Nodes) > 1); !printed[line] {
				printed[line] = true
				_ = screen.Print(line)
			}
		}
	}
	for {
		select {
		case err := <-watched:
			if err == nil { // what came since the last picture
				show(time.Now())
			}
			return err
		case <-ticker.C:
		}
		now := time.Now()
		show(now)
		if observer.Over(now) {
			cancel()
			return <-watched
		}
	}
}

// conclude prints the outcome, writes the report, and judges.
func (f outcomeFlags) conclude(r report.Report, a *asked, stdout, stderr io.Writer) error {
	r.Require(f.require)
	if err := a.print(stdout, r, r.Lines); err != nil {
		return err
	}
	for _, line := range r.Recording.Unread {
		_ = console.NewScreen(stderr).Print("could not watch: " + line)
	}
	if f.report != "" {
		var page bytes.Buffer
		err := r.WriteHTML(console.NewOutput(&page))
		if err == nil {
			err = os.WriteFile(f.report, page.Bytes(), 0o666)
		}
		if err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	if broken := r.Broken(); len(broken) > 0 {
		return fmt.Errorf("%w: %s", errRequired, strings.Join(broken, "; "))
	}
	return nil
}

// statusCommand is what the operator has asked `status` for.
type statusCommand struct {
	asked
	node  string
	watch bool
}

func newStatus() *cobra.Command {
	s := &statusCommand{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which nodes are interrupted, and how far each has come",
		Long: `Shows every interrupted node: its phase, the time left, the pods that still have to
leave, the replacement, and what it waits for; and those that are over, with their
result, as long as their records stand; and what EC2 has taken within a day. It
changes nothing.

It reads the cluster as kubectl does, with your own permissions, and says what it could
not read. The exit code is 0 if the Nodes could be read, else 1; 2 is wrong use.`,
		Example: `  # all interruptions, redrawn as they go
  spot-handler status --watch

  # one of them in full: record, pods and what each waits for, Events
  spot-handler status --node=ip-10-0-1-2.ec2.internal

  # nodes whose pods did not all end gracefully
  spot-handler status -o json | jq -r '.interruptions[] |
    select(.over and .pods.graceful != .pods.total) | .node'`,
		Args: cobra.NoArgs,
	}
	show := titled("Output")
	show.StringVar(&s.node, "node", "", "show all of this `node`: its record, its pods and what each waits for, its Events")
	show.BoolVarP(&s.watch, "watch", "w", false, "show it again when it changes, until Ctrl-C; on a terminal it is redrawn in place")
	s.define(cmd, show)
	_ = cmd.RegisterFlagCompletionFunc("node", s.completeNodes(func(n *corev1.Node) (string, bool) {
		rec, has, _ := nodes.Record(n)
		return string(rec.Kind), has
	})) // the error is of a flag that does not exist
	cmd.RunE = s.run
	return cmd
}

func (s *statusCommand) run(cmd *cobra.Command, _ []string) error {
	ctx, stderr := cmd.Context(), cmd.ErrOrStderr()
	c, err := s.connect()
	if err != nil {
		return err
	}
	r := status.Reader{Nodes: c.nodes, Core: c.core, Policy: c.policy, Dynamic: c.dynamic, Namespace: s.namespace, Watch: s.watch,
		Offerings: func(ctx context.Context) (*offerings.Memory, error) { return c.remembered(ctx, nil) }}
	screen := console.NewScreen(cmd.OutOrStdout())
	defer screen.End()
	if s.node != "" {
		cfg, from, err := c.settings(ctx, s.node)
		if err != nil {
			return err
		}
		in := status.InForce{Policy: cfg.policy, ScheduledLead: cfg.scheduledLead, From: from}
		return r.Node(ctx, s.node, in, printing(s.format, screen, stderr, s.watch, status.Node.Same, func(node status.Node) ([]string, []string) {
			return node.Lines(time.Now(), screen.Columns()), node.Unread
		}))
	}
	return r.List(ctx, printing(s.format, screen, stderr, s.watch, status.List.Same, func(list status.List) ([]string, []string) {
		return list.Table(screen.Columns()), list.Unread
	}))
}

// printing returns what prints a value, once or, with watch, each time that it is not the same as
// before. lines are those for people, and those about what could not be read.
func printing[T any](format console.Format, screen *console.Screen, stderr io.Writer, watch bool, same func(a, b T) bool, lines func(T) (found, unread []string)) func(T) error {
	var last *T
	return func(value T) error {
		before := last
		last = &value
		found, unread := lines(value)
		var notes []string
		for _, line := range unread {
			notes = append(notes, "could not read: "+line)
		}
		redraw := watch && screen.Live() && format == console.TableFormat
		switch {
		case redraw:
			screen.Show(slices.Concat([]string{time.Now().Format(time.TimeOnly), ""}, found, notes))
			return nil
		case before != nil && same(*before, value):
			return nil
		case format != console.TableFormat:
			return format.Write(screen, value)
		}
		if before != nil {
			_ = screen.Print("")
		}
		_ = screen.Print(found...)
		for _, note := range notes {
			_ = console.NewScreen(stderr).Print(note)
		}
		return nil
	}
}
