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
		Args: wrongArgs(cobra.MaximumNArgs(1)),
	}
	output := cmd.Flags().String("output", "", "what to print: flags, env, or values of our chart (default: flags for variables, values for values)")
	// The error is of a flag that does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(migrate.Outputs(), cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		in := cmd.InOrStdin()
		if len(args) == 1 && args[0] != "-" {
			file, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("%w: migrate: %w", errUsage, err)
			}
			defer file.Close()
			in = file
		}
		text, err := io.ReadAll(in)
		if err != nil {
			return fmt.Errorf("%w: migrate: %w", errUsage, err)
		}
		converted, err := migrate.Convert(text, *output)
		if err != nil {
			return fmt.Errorf("%w: migrate: %w", errUsage, err)
		}
		_, err = io.WriteString(cmd.OutOrStdout(), converted)
		return err
	}
	return cmd
}
