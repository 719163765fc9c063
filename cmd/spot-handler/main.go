// Command spot-handler gets workloads off instances before EC2 takes them.
//
// It learns of interruptions in one of two ways:
//
//	spot-handler imds    on every spot node, as a DaemonSet: watches the instance
//	                     metadata service for this node's own notices
//	spot-handler queue   as a Deployment: each replica consumes the SQS queue that
//	                     EventBridge feeds with the notices of all instances
//
// One replica of queue drains all nodes. So does one of the companion of imds --drain=false, which
// marks only:
//
//	spot-handler drain   as a Deployment: drains the nodes that imds has marked
//
// imds alone drains its own node, and knows nothing of the others.
//
// Some commands are for people, who run them from where they run kubectl, with their own permissions:
//
//	spot-handler status             shows which nodes are interrupted, and how far each has come
//	spot-handler observe NODE...    follows interruptions to their end, and writes a report
//	spot-handler plan NODE...       forecasts what would become of every pod if nodes were taken now
//	spot-handler audit              finds what will make an interruption end badly
//	spot-handler rehearse           interrupts nodes without EC2, and puts them back into service
//
// Installed under the name kubectl-spot_handler too, the program is a plugin: kubectl
// spot-handler status.
//
// The rest run once and talk to nothing:
//
//	spot-handler migrate [FILE]     converts the settings of aws-node-termination-handler
//	                                into values for the chart
//	spot-handler version            prints what this is
//	spot-handler completion SHELL   prints a script for bash, zsh, fish or PowerShell
//	spot-handler help COMMAND       is COMMAND --help, which has its flags and examples
//
// There are six kinds of notice: spot interruption, rebalance recommendation, interruption
// of a capacity reservation, scheduled event, termination by the Auto Scaling group, and
// change of the instance's state. A spot interruption leaves two minutes; scheduled events
// and recommendations have no hurry, and their drains wait for their time or their turn.
//
// In all modes, a notice becomes a record, a taint and a cordon on the Node, with one
// request; then replacement capacity is requested from the fallback pool, the pods
// are moved within the time that EC2 leaves, and the node is terminated by what made
// it. All state is on the Node (annotation spot-handler/interruption), so the process
// may be killed and replaced at any moment.
//
// # Configuration
//
// Every flag of a mode can be given as a variable too: --queue-url is
// SPOT_HANDLER_QUEUE_URL. A flag overrides its variable. Three things come from where every
// other tool reads them:
//
//   - AWS region, credentials and endpoints: the SDK's variables (AWS_REGION,
//     AWS_ENDPOINT_URL_SQS, AWS_EC2_METADATA_SERVICE_ENDPOINT, ...)
//   - the cluster: --kubeconfig, KUBECONFIG, or the pod's service account
//   - the node's name in imds mode: --node-name or NODE_NAME (downward API)
//
// # HTTP
//
// --http-addr serves /metrics, /healthz (the process runs) and /readyz (Nodes are
// known and the source answers).
//
// # Exit codes
//
// 0 after a clean stop, on SIGTERM or SIGINT, and after --help; 1 when it cannot go on;
// 2 for wrong flags or missing permissions, all named at once, before anything is touched;
// 3 for what audit --fail-on or --require was to find.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/migrate"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	tuneMemory(200)
	os.Exit(runAs(ctx, os.Args[0], os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

// errUsage marks what the operator has to change before a start makes sense.
var errUsage = errors.New("wrong use")

const (
	exitClean   = 0
	exitRuntime = 1
	exitUsage   = 2
	exitFound   = 3
)

// runAs runs the program under the name that it was started by.
func runAs(ctx context.Context, program string, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	stdout, stderr = console.NewOutput(stdout), console.NewOutput(stderr)
	root := newRoot(getenv, stdout, stderr)
	calledAs(root, program)
	root.SetArgs(append([]string{}, args...)) // of nil cobra would make the process's own
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		for _, cmd := range root.Commands() {
			cmd.DisableFlagParsing = false // cobra completes only what it parses
		}
	}
	understood := false
	root.PersistentPreRun = func(*cobra.Command, []string) { understood = true }
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitClean
	}
	fmt.Fprintf(stderr, "spot-handler: %v\n", err)
	if errors.Is(err, errFindings) || errors.Is(err, errRequired) {
		return exitFound
	}
	if !understood || errors.Is(err, errUsage) {
		return exitUsage
	}
	return exitRuntime
}

const overview = `spot-handler drains spot nodes before EC2 reclaims them: it cordons the node, requests
a replacement, and evicts the pods in time.`

// newRoot is the program's command line.
func newRoot(getenv func(string) string, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "spot-handler", Short: "Drain spot nodes before EC2 reclaims them", Long: overview,
		Example:      "  spot-handler imds --node-name=ip-10-0-1-2.ec2.internal --dry-run\n  spot-handler queue --help",
		SilenceUsage: true, SilenceErrors: true, // run prints them
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	asked := root.Flags().Bool("version", false, "print the version")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *asked {
			return printVersion(cmd, args)
		}
		return fmt.Errorf("%w: give a command, such as audit or queue; see spot-handler --help", errUsage)
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			return fmt.Errorf("%w%s", err, didYouMean(cmd.Flags(), unknown.GetSpecifiedName()))
		}
		var invalid *pflag.InvalidValueError
		if errors.As(err, &invalid) {
			return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, invalid.Unwrap())
		}
		return err
	})

	groups := []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Daemon", []*cobra.Command{newIMDS(getenv), newDrain(getenv), newQueue(getenv)}},
		{"Before an interruption", []*cobra.Command{newAudit(), newPlan(), newRehearse()}},
		{"During and after", []*cobra.Command{newStatus(), newObserve()}},
	}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
		}
		root.AddCommand(g.commands...)
	}
	root.AddCommand(newMigrate(), newVersion())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() { // those that cobra brings
		cmd.Example = cmp.Or(cmd.Example, map[string]string{
			"help": "  spot-handler help queue", "completion": "  source <(spot-handler completion bash)",
		}[cmd.Name()])
	}
	return root
}

// calledAs has root speak of itself by the name that it was started by. kubectl starts the program
// kubectl-spot_handler as `kubectl spot-handler`: it reads an underscore as a hyphen.
// https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/#names-with-dashes-and-underscores
func calledAs(root *cobra.Command, program string) {
	if strings.TrimSuffix(filepath.Base(program), ".exe") != "kubectl-spot_handler" {
		return
	}
	name := "kubectl " + root.Name()
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	for _, cmd := range append(root.Commands(), root) {
		cmd.Example = strings.ReplaceAll(cmd.Example, root.Name()+" ", name+" ")
	}
}

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate [FILE]",
		Short: "Convert the settings of aws-node-termination-handler into values for the chart",
		Long: `Reads the settings of aws-node-termination-handler 1.25 and prints values for
spot-handler's chart. Comments name what differs, and what has no counterpart, with the
reason. It contacts nothing.

FILE, or the standard input, is one of:
  - its DaemonSet, Deployment or Pod, as YAML or JSON: the environment variables are read
  - values of its Helm chart`,
		Example: `  # the installed objects
  kubectl -n kube-system get daemonset,deployment -o yaml \
    -l app.kubernetes.io/name=aws-node-termination-handler | spot-handler migrate > values.yaml

  # the values of its chart
  helm -n kube-system get values aws-node-termination-handler | spot-handler migrate > values.yaml`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		read := func() ([]byte, error) { return io.ReadAll(cmd.InOrStdin()) }
		if len(args) == 1 && args[0] != "-" {
			read = func() ([]byte, error) { return os.ReadFile(args[0]) }
		}
		values := ""
		text, err := read()
		if err == nil {
			values, err = migrate.Convert(text)
		}
		if err != nil {
			return fmt.Errorf("%w: migrate: %w", errUsage, err)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), values)
		return err
	}
	return cmd
}
