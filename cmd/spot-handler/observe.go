package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/report"
)

// errRequired is what ends a command that was asked to fail because of what happened.
var errRequired = errors.New("not as --require asks")

// observeCommand is what the operator has asked `observe` for.
type observeCommand struct {
	commonFlags
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
	meaning(flags, &f.require, "require", "", report.ParseRequirements,
		"exit with 3 unless it ends as these `requirements` say, such as left=0,dip=0,slack=20s")
}

func newObserve() *cobra.Command { return new(observeCommand).command() }

func (o *observeCommand) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "observe [NODE…]",
		Short: "Follow interruptions to their end, and write a report",
		Long: `Follows interruptions live: how far each node has come, each pod that has to leave, and
how many pods of their workloads are ready. When all are over, it sums up and writes a
report. It changes nothing.

Start it before or during an interruption: it waits for the first one, however long that
takes. Ctrl-C stops it early, and it reports what it has seen.

It watches the cluster with your own permissions, and says what it couldn't watch. Exit
codes: 0 if the nodes could be watched, 1 if not, 2 for wrong use, 3 if a --require
condition wasn't met.`,
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
	return o.outcome.conclude(report.Of(observer.Recording(time.Now()), nil), &o.commonFlags, stdout, stderr)
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
	shown := picture{screen, map[string]bool{}}
	for {
		select {
		case err := <-watched:
			if err == nil { // what came since the last picture
				shown.show(observer, time.Now())
			}
			return err
		case <-ticker.C:
		}
		now := time.Now()
		shown.show(observer, now)
		if observer.Over(now) {
			cancel()
			return <-watched
		}
	}
}

// picture is what is shown of interruptions that are under way.
type picture struct {
	screen  *console.Screen
	printed map[string]bool // lines already printed, if the screen can't be redrawn
}

func (p picture) show(what interface {
	View(now time.Time, columns, rows int) []string
	Recording(now time.Time) observe.Recording
}, now time.Time) {
	if p.screen.Live() {
		p.screen.Show(what.View(now, p.screen.Columns(), p.screen.Rows()))
		return
	}
	r := what.Recording(now)
	for _, h := range r.Happenings() {
		if line := r.Line(h); !p.printed[line] {
			p.printed[line] = true
			_ = p.screen.Print(line)
		}
	}
}

// conclude prints the outcome, writes the report, and judges.
func (f outcomeFlags) conclude(r report.Report, a *commonFlags, stdout, stderr io.Writer) error {
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
