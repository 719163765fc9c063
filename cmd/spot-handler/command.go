package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const overview = `spot-handler gets workloads off spot instances before EC2 takes them: cordon,
replacement capacity from the fallback pool, drain within the deadline.`

// newRoot is the program's command line. Each command is a file of its own.
func newRoot(getenv func(string) string, stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "spot-handler COMMAND", Short: "Get workloads off spot instances before EC2 takes them", Long: overview,
		Example:      "  spot-handler imds --node-name=ip-10-0-1-2.ec2.internal --dry-run\n  spot-handler queue --help",
		SilenceUsage: true, SilenceErrors: true, // run tells them
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	showVersion := root.Flags().Bool("version", false, "print the version")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*showVersion {
			return errors.New("give a command, imds or queue; see spot-handler --help")
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), versionText())
		return err
	}
	root.SetUsageFunc(usage)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			err = fmt.Errorf("%w%s", err, didYouMean(cmd.Flags(), unknown.GetSpecifiedName()))
		}
		return fmt.Errorf("%w: %w", errUsage, err)
	})

	root.AddGroup(&cobra.Group{ID: daemons, Title: "Modes"})
	root.AddCommand(newIMDS(getenv), newQueue(getenv), newMigrate(), newVersion())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() { // those that cobra brings
		cmd.Example = cmp.Or(cmd.Example, map[string]string{
			"help": "  spot-handler help queue", "completion": "  source <(spot-handler completion bash)",
		}[cmd.Name()])
	}
	return root
}

// wrongArgs has a command's own arguments checked, as wrong use.
func wrongArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		return nil
	}
}

// helpWidth fits the usual terminal.
const helpWidth = 100

// usage is what --help shows below a command's text. Cobra's own knows no groups of flags. A
// template of cobra's would do, but text/template keeps every exported method of the program.
func usage(cmd *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage:\n  %s\n", cmd.UseLine())
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	for _, g := range append(cmd.Groups(), &cobra.Group{Title: "Commands"}) {
		title := "\n" + g.Title + ":\n"
		for _, sub := range cmd.Commands() {
			if sub.GroupID == g.ID && (sub.IsAvailableCommand() || sub.Name() == "help") {
				fmt.Fprintf(&b, "%s  %-*s %s\n", title, sub.NamePadding(), sub.Name(), sub.Short)
				title = ""
			}
		}
	}
	for _, g := range groupsOf(cmd.LocalFlags()) {
		fmt.Fprintf(&b, "\n%s:\n%s", g.title, g.FlagUsagesWrapped(helpWidth))
	}
	_, err := io.WriteString(cmd.OutOrStderr(), b.String())
	return err
}
