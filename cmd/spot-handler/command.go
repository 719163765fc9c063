package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const overview = `spot-handler gets workloads off spot instances before EC2 takes them: cordon,
replacement capacity from the fallback pool, drain within the deadline.`

// newRoot is the program's command line. Each command is a file of its own.
func newRoot(getenv func(string) string, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "spot-handler", Short: "Get workloads off spot instances before EC2 takes them", Long: overview,
		Example:      "  spot-handler imds --node-name=ip-10-0-1-2.ec2.internal --dry-run\n  spot-handler queue --help",
		SilenceUsage: true, SilenceErrors: true, // run tells them
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	showVersion := root.Flags().Bool("version", false, "print the version")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*showVersion {
			return fmt.Errorf("%w: give a command, such as imds or queue; see spot-handler --help", errUsage)
		}
		return printVersion(cmd)
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			return fmt.Errorf("%w%s", err, didYouMean(cmd.Flags(), unknown.GetSpecifiedName()))
		}
		return err
	})

	root.AddGroup(&cobra.Group{ID: daemons, Title: "Modes:"})
	root.AddCommand(newIMDS(getenv), newDrain(getenv), newQueue(getenv), newStatus(), newObserve(), newPlan(), newAudit(), newRehearse(), newMigrate(), newVersion())
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
