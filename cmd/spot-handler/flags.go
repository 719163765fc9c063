package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
)

// group is a titled part of a command's flags, in the order in which --help shows them.
type group struct {
	title string
	*pflag.FlagSet
}

func titled(title string) group {
	g := group{title, pflag.NewFlagSet(title, pflag.ContinueOnError)}
	g.SortFlags = false
	return g
}

// checked is the value of a flag, which check has found right.
type checked struct {
	pflag.Value
	check   func() error
	allowed []string // that the shell offers
}

// Set takes what was typed.
func (v checked) Set(text string) error {
	if err := v.Value.Set(text); err != nil {
		return err
	}
	return v.check()
}

// oneOf declares a flag that takes one of some values.
func oneOf(g group, to *string, name, standard string, allowed []string, usage string) {
	g.StringVar(to, name, standard, usage)
	g.Lookup(name).Value = checked{g.Lookup(name).Value, func() error {
		if !slices.Contains(allowed, *to) {
			return fmt.Errorf("%q: want one of %s", *to, strings.Join(allowed, ", "))
		}
		return nil
	}, allowed}
}

func names[T ~string](values []T) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = string(v)
	}
	return list
}

// ever is longer than any time.
const ever = time.Duration(1<<63 - 1)

// bounds are those of a time, in words too.
type bounds struct {
	least, most time.Duration
	orZero      bool
	want        string
}

// within declares a flag that takes a time within bounds.
func within(g group, to *time.Duration, name string, standard time.Duration, in bounds, usage string) {
	g.DurationVar(to, name, standard, usage)
	g.Lookup(name).Value = checked{g.Lookup(name).Value, func() error {
		if (*to < in.least || *to > in.most) && (*to != 0 || !in.orZero) {
			return fmt.Errorf("%s: want %s", *to, in.want)
		}
		return nil
	}, nil}
}

// meaning declares a flag whose text is parsed into a value. The default need not parse.
func meaning[T any](g group, to *T, name, standard string, parse func(string) (T, error), usage string) {
	text := g.String(name, standard, usage)
	*to, _ = parse(standard)
	g.Lookup(name).Value = checked{g.Lookup(name).Value, func() (err error) {
		if *to, err = parse(*text); *text == standard {
			return nil
		}
		return err
	}, nil}
}

func parseLabels(text string) (labels.Selector, error) { return labels.Parse(text) }

// hide leaves flags out of --help that a pod's surroundings decide: the downward API, or the chart.
func hide(g group, names ...string) {
	for _, name := range names {
		_ = g.MarkHidden(name) // fails only for a flag that is not defined
	}
}

// replaced are flags of older versions, and what takes their place.
var replaced = map[string]string{
	"kube-api-qps":           "the API server's priority and fairness sets the pace",
	"kube-api-burst":         "the API server's priority and fairness sets the pace",
	"receivers":              "four receive calls are always open",
	"hook-timeout":           "a hook's own timeout is read from its group",
	"heartbeat-interval":     "--heartbeat-until=1h sends heartbeats, at half of the hook's timeout",
	"notice-host-network":    "name the nodes' networks in --notice-networks",
	"rebalance-capacity":     "--rebalance=fallback requests the replacement that an interruption notice would get",
	"webhook-url":            "put the URL into a file, such as a mounted Secret's, and name that by --webhook-url-file",
	"webhook-template":       "put the template into a file, and name that by --webhook-template-file",
	"lease-namespace":        "the Lease is in the pod's own namespace",
	"poll-interval":          "the metadata service is polled for a spot notice every two seconds",
	"log-format":             "the log is JSON, but in a terminal",
	"placeholder-namespace":  "placeholders are made in the namespace spot-handler-placeholders",
	"node-selector":          "--managed-nodes says which nodes are handled",
	"managed-tag":            "every Node of this cluster is handled; --managed-nodes names fewer",
	"watch-spot":             "--watch lists what is polled",
	"watch-lifecycle":        "--watch lists what is polled",
	"watch-rebalance":        "--watch lists what is polled",
	"watch-scheduled-events": "--watch lists what is polled",
}

// helpWidth fits the usual terminal.
const helpWidth = 100

// addGroups gives cmd its flags, which --help shows in their groups. Cobra's own help has none.
func addGroups(cmd *cobra.Command, groups []group) {
	cmd.Flags().SortFlags = false
	for _, g := range groups {
		cmd.Flags().AddFlagSet(g.FlagSet)
		g.VisitAll(func(f *pflag.Flag) {
			if v, ok := f.Value.(checked); ok && v.allowed != nil {
				// The error is of a flag that does not exist, or that has its values already.
				_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(v.allowed, cobra.ShellCompDirectiveNoFileComp))
			}
		})
	}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		fmt.Fprintf(out, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		for _, g := range groups {
			if g.HasAvailableFlags() {
				fmt.Fprintf(out, "\n%s:\n%s", g.title, g.usages())
			}
		}
		return nil
	})
}

// usages lists the flags as --help shows them. A usage that says itself what the default is gets no
// other: pflag would add "[]" or "0s" to it.
func (g group) usages() string {
	shown := titled(g.title)
	g.VisitAll(func(f *pflag.Flag) {
		if strings.Contains(f.Usage, "(default: ") {
			quiet := *f
			quiet.DefValue = ""
			quiet.Value = checked{Value: f.Value} // pflag shows no empty default of a type that it doesn't know
			f = &quiet
		}
		shown.AddFlag(f)
	})
	return shown.FlagUsagesWrapped(helpWidth)
}

// variable is the name under which a flag can be given in the environment.
func variable(flag string) string {
	return "SPOT_HANDLER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// commonVariables are those that other tools know too; ours overrides them.
var commonVariables = map[string]string{
	"node-name": "NODE_NAME", "kubeconfig": "KUBECONFIG", "pod-name": "POD_NAME", "pod-namespace": "POD_NAMESPACE",
}

// readsVariables has cmd take its flags from variables too, and name all that is wrong with both
// before it does anything. Cobra would stop at the first wrong flag. validate says what is
// wrong with the values.
func readsVariables(cmd *cobra.Command, getenv func(string) string, validate func() []error, do func(*cobra.Command) error) {
	cmd.DisableFlagParsing = true // and so by parse
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		problems, help := parse(cmd.Flags(), args, getenv)
		if help {
			return pflag.ErrHelp
		}
		if problems = append(problems, validate()...); len(problems) > 0 {
			return fmt.Errorf("%w:\n%w", errUsage, errors.Join(problems...))
		}
		return do(cmd)
	}
}

// parse sets flags from the arguments, and from variables where those leave them out. It returns
// all that is wrong, and whether --help is among the arguments.
func parse(flags *pflag.FlagSet, args []string, getenv func(string) string) (problems []error, help bool) {
	problems = append(unknownFlags(flags, args), fill(flags, args, getenv)...)
	if help, err := flags.GetBool("help"); err == nil && help {
		return nil, true
	}
	for _, arg := range flags.Args() {
		problems = append(problems, fmt.Errorf("unexpected argument %q", arg))
	}
	for _, name := range slices.Sorted(maps.Keys(replaced)) {
		if getenv(variable(name)) != "" {
			problems = append(problems, fmt.Errorf("%s is no longer a variable: %s", variable(name), replaced[name]))
		}
	}
	return problems, false
}

// fill sets flags from the arguments, and from variables where those leave them out, and returns what is
// wrong with their values. Arguments that are no flags are left alone.
func fill(flags *pflag.FlagSet, args []string, getenv func(string) string) (problems []error) {
	set := func(f *pflag.Flag, value string) error {
		err := flags.Set(f.Name, value)
		if invalid := errors.Unwrap(err); invalid != nil {
			err = wrong(f.Name, invalid)
		}
		if err != nil {
			problems = append(problems, err)
		}
		return nil
	}
	flags.ParseErrorsAllowlist.UnknownFlags = true
	if err := flags.ParseAll(args, set); err != nil {
		problems = append(problems, err)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if value := cmp.Or(getenv(variable(f.Name)), getenv(commonVariables[f.Name])); value != "" && !f.Changed && f.Name != "help" {
			_ = set(f, value)
		}
	})
	return problems
}

// wrong says which flag's value is wrong.
func wrong(flag string, err error) error {
	return fmt.Errorf("--%s (%s): %w", flag, variable(flag), err)
}

// unknownFlags names the arguments that look like flags and are none.
func unknownFlags(flags *pflag.FlagSet, args []string) (problems []error) {
	for i := 0; i < len(args) && args[i] != "--"; i++ {
		given, _, hasValue := strings.Cut(args[i], "=")
		if !strings.HasPrefix(given, "-") || given == "-h" {
			continue
		}
		switch f := flags.Lookup(strings.TrimPrefix(given, "--")); {
		case f == nil:
			name := strings.TrimLeft(given, "-")
			if instead := replaced[name]; instead != "" {
				problems = append(problems, fmt.Errorf("%s is no longer a flag: %s", given, instead))
			} else {
				problems = append(problems, fmt.Errorf("unknown flag: %s%s", given, didYouMean(flags, name)))
			}
		case !hasValue && f.NoOptDefVal == "":
			i++ // the next one is its value
		}
	}
	return problems
}

// didYouMean names the flags that a mistyped one is like, by what cobra takes for like in the
// names of commands.
func didYouMean(flags *pflag.FlagSet, name string) string {
	known := &cobra.Command{SuggestionsMinimumDistance: 2}
	flags.VisitAll(func(f *pflag.Flag) {
		known.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	like := known.SuggestionsFor(name)
	if name == "" || len(like) == 0 {
		return ""
	}
	return "; did you mean --" + strings.Join(like, " or --") + "?"
}
