package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/terminal"
	"spot-handler/handler/nodes"
)

// asked is what the operator has asked every command for people for.
type asked struct {
	cluster console.Cluster
	format  console.Format
}

// define gives cmd its flags: those of its own groups, then those of the output, then those of the
// cluster.
func (a *asked) define(cmd *cobra.Command, output group, own ...group) {
	where := titled("Cluster")
	a.format.Define(output.FlagSet)
	a.cluster.Define(where.FlagSet)
	if cmd.Name() != "observe" { // which all others ask for its settings
		a.cluster.DefineDaemon(where.FlagSet)
	}
	addGroups(cmd, append(own, output, where))
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for flag, complete := range map[string]cobra.CompletionFunc{
		"output":    cobra.FixedCompletions(console.Formats(), cobra.ShellCompDirectiveNoFileComp),
		"namespace": cobra.NoFileCompletions, "daemon-namespace": cobra.NoFileCompletions, "require": cobra.NoFileCompletions,
		"context": func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return a.cluster.Contexts(), cobra.ShellCompDirectiveNoFileComp
		},
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, complete) // the error is of a flag that the command does not have
	}
}

// live is where a command shows what changes: on standard error if programs read its output.
func (a *asked) live(stdout, stderr io.Writer) *terminal.Screen {
	if a.format == console.TableFormat {
		return terminal.New(stdout)
	}
	return terminal.New(stderr)
}

// print prints a value, for people as lines in so many columns of a terminal.
func (a *asked) print(stdout io.Writer, value any, lines func(columns int) []string) error {
	screen := terminal.New(stdout)
	if a.format == console.TableFormat {
		return screen.Print(lines(screen.Columns())...)
	}
	return a.format.Write(screen, value)
}

// completeIn is how long the shell waits for names from the cluster.
const completeIn = 3 * time.Second

// completeNodes offers the nodes that are not named yet, with what is said of them; those of which
// nothing is are left out.
func (a *asked) completeNodes(say func(*corev1.Node) (text string, ok bool)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, named []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeIn)
		defer cancel()
		c, err := connectCaller(a.cluster)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		list, err := nodes.List(ctx, c.nodes, metav1.ListOptions{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var offered []cobra.Completion
		for i := range list.Items {
			n := &list.Items[i]
			if text, ok := say(n); ok && strings.HasPrefix(n.Name, typed) && !slices.Contains(named, n.Name) {
				offered = append(offered, cobra.CompletionWithDesc(n.Name, text))
			}
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
	}
}

// anyNode says the pool of every node.
func anyNode(node *corev1.Node) (pool string, ok bool) { return nodes.PoolOf(node).Name, true }
