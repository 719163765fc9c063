package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/nodes"
)

// commonFlags are the flags of every command for people.
type commonFlags struct {
	kubeconfig, context, namespace string
	// daemonNamespace is where spot-handler is installed; empty if it has to be found.
	daemonNamespace string
	format          console.Format

	cluster *rest.Config // nil: the one that the flags name
}

// define gives cmd its flags: those of its own groups, then those of the output, then those of the
// cluster.
func (a *commonFlags) define(cmd *cobra.Command, output group, own ...group) {
	where := titled("Cluster")
	oneOf(output, (*string)(&a.format), "output", string(console.TableFormat), console.Formats(),
		"output `format`: table for people; json or yaml for programs, whose fields stay the same from "+
			"version to version")
	output.Lookup("output").Shorthand = "o"
	where.StringVar(&a.kubeconfig, "kubeconfig", "",
		"kubeconfig `file` (default: $KUBECONFIG, else ~/.kube/config, else the pod's service account)")
	where.StringVar(&a.context, "context", "", "`name` of the kubeconfig's context (default: its current one)")
	where.StringVarP(&a.namespace, "namespace", "n", "", "read only pods of this `namespace` (default: of all)")
	if cmd.Name() != "observe" { // which all others ask for its settings
		where.StringVar(&a.daemonNamespace, "daemon-namespace", "",
			"`namespace` that spot-handler is installed in (default: the namespace of the service accounts in "+
				"the chart's ClusterRoleBindings)")
	}
	addGroups(cmd, append(own, output, where))
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for flag, complete := range map[string]cobra.CompletionFunc{
		"namespace": cobra.NoFileCompletions, "daemon-namespace": cobra.NoFileCompletions, "require": cobra.NoFileCompletions,
		"context": func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			known, _ := a.clientConfig().RawConfig() // one that cannot be read has none
			return slices.Sorted(maps.Keys(known.Contexts)), cobra.ShellCompDirectiveNoFileComp
		},
	} {
		_ = cmd.RegisterFlagCompletionFunc(flag, complete) // the error is of a flag that the command does not have
	}
}

// clientConfig finds the cluster as kubectl does.
func (a *commonFlags) clientConfig() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.context})
}

// connect returns clients with the permissions of the person who asks.
func (a *commonFlags) connect() (*caller, error) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // client-go's log is not part of an answer
	conf := a.cluster
	if conf == nil {
		var err error
		if conf, err = a.clientConfig().ClientConfig(); err != nil {
			return nil, fmt.Errorf("%w: find the cluster with --kubeconfig, --context or KUBECONFIG: %w", errUsage, err)
		}
	}
	c, err := newCaller(paced(conf, "spot-handler-command"))
	if err == nil {
		c.daemonNamespace = a.daemonNamespace
	}
	return c, err
}

// live is where a command shows what changes: on standard error if programs read its output.
func (a *commonFlags) live(stdout, stderr io.Writer) *console.Screen {
	if a.format == console.TableFormat {
		return console.NewScreen(stdout)
	}
	return console.NewScreen(stderr)
}

// print prints a value, for people as lines in so many columns of a terminal.
func (a *commonFlags) print(stdout io.Writer, value any, lines func(columns int) []string) error {
	screen := console.NewScreen(stdout)
	if a.format == console.TableFormat {
		return screen.Print(lines(screen.Columns())...)
	}
	return a.format.Write(screen, value)
}

// completeIn is how long the shell waits for names from the cluster.
const completeIn = 3 * time.Second

// completeNodes offers the nodes that are not named yet, with what is said of them; those of which
// nothing is are left out.
func (a *commonFlags) completeNodes(say func(*corev1.Node) (text string, ok bool)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, named []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeIn)
		defer cancel()
		c, err := a.connect()
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

// selection says which nodes a command is about: those that are named, or those that flags describe.
// A node has to match all flags that are set.
type selection struct {
	names                    []string
	pool, instanceType, zone string
	labels                   labels.Selector

	// any selects all nodes if nothing is asked for; otherwise that is an error.
	any bool
}

// define declares the flags. The nodes' names are a command's arguments.
func (s *selection) define(flags group) {
	flags.StringVar(&s.pool, "pool", "", "nodes of this `pool`: of Karpenter, EKS or eksctl")
	flags.StringVar(&s.instanceType, "instance-type", "", "nodes of this instance `type`")
	flags.StringVar(&s.zone, "zone", "", "nodes in this `zone`")
	meaning(flags, &s.labels, "selector", "", parseLabels, "nodes that this label `selector` selects, such as team=blue")
	flags.Lookup("selector").Shorthand = "l"
}

// parse takes a command's arguments as names of nodes, and checks what was asked for.
func (s *selection) parse(args []string) error {
	s.names = args
	described := s.described()
	switch {
	case len(args) > 0 && described:
		return errors.New("name nodes, or describe them by --pool, --instance-type, --zone and --selector, but not both")
	case len(args) == 0 && !described && !s.any:
		return errors.New("no nodes: name some, or describe them by --pool, --instance-type, --zone or --selector")
	}
	return nil
}

// described reports whether flags say which nodes are meant.
func (s *selection) described() bool {
	return s.pool != "" || s.instanceType != "" || s.zone != "" || !s.labels.Empty()
}

// choose returns the selected nodes, sorted by name. It is an error if a named one does not exist, or
// none is selected.
func (s *selection) choose(all []*corev1.Node) ([]*corev1.Node, error) {
	var found []*corev1.Node
	missing := slices.Clone(s.names)
	for _, node := range all {
		if s.matches(node) {
			found = append(found, node)
			missing = slices.DeleteFunc(missing, func(name string) bool { return name == node.Name })
		}
	}
	switch {
	case len(missing) > 0:
		return nil, fmt.Errorf("no such node: %s", strings.Join(missing, ", "))
	case len(found) == 0:
		return nil, errors.New("no node is selected")
	}
	slices.SortFunc(found, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

func (s *selection) matches(node *corev1.Node) bool {
	if len(s.names) > 0 {
		return slices.Contains(s.names, node.Name)
	}
	is := func(want, value string) bool { return want == "" || want == value }
	return is(s.pool, nodes.PoolOf(node).Name) && is(s.instanceType, node.Labels[corev1.LabelInstanceTypeStable]) &&
		is(s.zone, node.Labels[corev1.LabelTopologyZone]) && s.labels.Matches(labels.Set(node.Labels))
}
