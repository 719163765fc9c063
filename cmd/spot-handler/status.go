package main

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/handler/nodes"
	"spot-handler/handler/offerings"
)

// statusCommand is what the operator has asked `status` for.
type statusCommand struct {
	commonFlags
	node  string
	watch bool
}

func newStatus() *cobra.Command {
	s := &statusCommand{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which nodes are interrupted, and how far each has come",
		Long: `Shows every interrupted node: its phase, the time left, the pods that still have to
leave, the replacement, and what it waits for. Finished interruptions are listed while
their record is on the Node. Below that is what EC2 reclaimed in the last 24 hours.
It changes nothing.

It reads the cluster as kubectl does, with your own permissions, and says what it
couldn't read. Exit codes: 0 if the Nodes could be read, 1 if not, 2 for wrong use.`,
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
		rec, _ := nodes.Record(n)
		return string(rec.Kind), nodes.HasRecord(n)
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
	r := status.Reader{
		Nodes:     c.nodes,
		Core:      c.core,
		Policy:    c.policy,
		Dynamic:   c.dynamic,
		Namespace: s.namespace,
		Watch:     s.watch,
		Offerings: func(ctx context.Context) (*offerings.Memory, error) { return c.remembered(ctx, nil) },
	}
	screen := console.NewScreen(cmd.OutOrStdout())
	defer screen.End()
	if s.node != "" {
		cfg, err := c.settings(ctx, s.node)
		if err != nil {
			return err
		}
		in := status.InForce{Policy: cfg.policy, ScheduledLead: cfg.scheduledLead, From: cfg.from}
		p := printer[status.Node]{
			format: s.format,
			screen: screen,
			notes:  stderr,
			redraw: s.watch && screen.Live(),
			same:   status.Node.Same,
			lines:  func(node status.Node) []string { return node.Lines(time.Now(), screen.Columns()) },
			unread: func(node status.Node) []string { return node.Unread },
		}
		return r.Node(ctx, s.node, in, p.print)
	}
	p := printer[status.List]{
		format: s.format,
		screen: screen,
		notes:  stderr,
		redraw: s.watch && screen.Live(),
		same:   status.List.Same,
		lines:  func(list status.List) []string { return list.Table(screen.Columns()) },
		unread: func(list status.List) []string { return list.Unread },
	}
	return r.List(ctx, p.print)
}

// printer prints a value that is read again and again, each time that it is not the same as before.
type printer[T any] struct {
	format console.Format
	screen *console.Screen
	notes  io.Writer // for what could not be read
	redraw bool      // on a terminal, in place and every time

	same   func(a, b T) bool
	lines  func(T) []string // for people
	unread func(T) []string

	last *T
}

func (p *printer[T]) print(value T) error {
	before := p.last
	p.last = &value
	var notes []string
	for _, line := range p.unread(value) {
		notes = append(notes, "could not read: "+line)
	}
	switch {
	case p.redraw && p.format == console.TableFormat:
		p.screen.Show(slices.Concat([]string{time.Now().Format(time.TimeOnly), ""}, p.lines(value), notes))
		return nil
	case before != nil && p.same(*before, value):
		return nil
	case p.format != console.TableFormat:
		return p.format.Write(p.screen, value)
	}
	if before != nil {
		_ = p.screen.Print("")
	}
	_ = p.screen.Print(p.lines(value)...)
	for _, note := range notes {
		_ = console.NewScreen(p.notes).Print(note)
	}
	return nil
}
