package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"spot-handler/cmd/spot-handler/internal/migrate"
)

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate [FILE]",
		Short: "Print the settings for those who come from aws-node-termination-handler",
		Long: `Reads the settings of aws-node-termination-handler 1.25 and prints those of
spot-handler, with what has no counterpart and why. It talks to nothing.

FILE, or the standard input, is one of:
  - variables, a line NAME=value each
  - the DaemonSet, Deployment or Pod as YAML or JSON, of which the variables are taken
  - values of its Helm chart`,
		Example: `  # what runs, as a command line
  kubectl -n kube-system get daemonset,deployment -o yaml \
    -l app.kubernetes.io/name=aws-node-termination-handler | spot-handler migrate

  # the values of its chart, as those of ours
  helm -n kube-system get values aws-node-termination-handler | spot-handler migrate > values.yaml`,
		Args: cobra.MaximumNArgs(1),
	}
	output := cmd.Flags().String("output", "", "print flags, env, or values (default: values for values, else flags)")
	// The error is of a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(migrate.Outputs(), cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		converted, err := convert(cmd.InOrStdin(), args, *output)
		if err != nil {
			return fmt.Errorf("%w: migrate: %w", errUsage, err)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), converted)
		return err
	}
	return cmd
}

func convert(stdin io.Reader, args []string, output string) (string, error) {
	var text []byte
	var err error
	if len(args) == 1 && args[0] != "-" {
		text, err = os.ReadFile(args[0])
	} else {
		text, err = io.ReadAll(stdin)
	}
	if err != nil {
		return "", err
	}
	return migrate.Convert(text, output)
}
