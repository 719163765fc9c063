package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"spot-handler/cmd/spot-handler/internal/audit"
	"spot-handler/cmd/spot-handler/internal/cluster"
)

// errFindings is what ends a command that was asked to fail because of what it found.
var errFindings = errors.New("there are findings as bad as --fail-on, or worse")

// auditCommand is what the operator has asked `audit` for.
type auditCommand struct {
	commonFlags
	failOn, baseline string
	maxShare         int
}

func newAudit() *cobra.Command {
	a := &auditCommand{}
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Find what an interruption would break",
		Long: `Checks the workloads on spot nodes, the places they could go, and the handlers that act
on a notice. Lists what an interruption would break, why, and a command that fixes it.
It changes nothing.

It reads the cluster as kubectl does, with your own permissions, and says what it
couldn't read. Exit codes: 0 if everything was read, 1 if not, 2 for wrong use, 3 if
there are findings at or above --fail-on.`,
		Example: `  # everything, the worst first
  spot-handler audit

  # in a pipeline: accept what is known, and fail on what is new
  spot-handler audit -o json > known.json
  spot-handler audit --baseline=known.json --fail-on=warning`,
		Args: cobra.NoArgs,
	}
	show := titled("Output")
	oneOf(show, &a.failOn, "fail-on", "", audit.Severities(),
		"exit with 3 if there is a finding of this `severity` or worse: critical or warning (default: never)")
	show.StringVar(&a.baseline, "baseline", "", "accept what this `file` lists, printed by audit -o json before")
	show.IntVar(&a.maxShare, "max-share", 50,
		"how many `percent` of a workload's pods may be on instances of one type in one zone, which EC2 "+
			"takes back together")
	a.define(cmd, show)
	cmd.RunE = a.run
	return cmd
}

func (a *auditCommand) run(cmd *cobra.Command, _ []string) error {
	ctx := cmd.Context()
	if a.maxShare < 1 || a.maxShare > 100 {
		return fmt.Errorf("%w: --max-share=%d: want 1 to 100", errUsage, a.maxShare)
	}
	var baseline []byte
	var err error
	if a.baseline != "" {
		if baseline, err = os.ReadFile(a.baseline); err != nil {
			return fmt.Errorf("%w: --baseline: %w", errUsage, err)
		}
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	cfg, err := c.settings(ctx)
	if err != nil {
		return err
	}
	read := cluster.Read(ctx, cluster.Lister{Client: c.whole.core, Namespace: a.namespace})
	snapshot, unread := audit.NewSnapshot(read, audit.Options{Margin: cfg.policy.Margin, MaxShare: a.maxShare}), read.Unread
	if a.namespace == "" {
		unread = append(unread, audit.Reader{
			Lists:            cluster.Lister{Client: c.whole.core},
			Dynamic:          c.whole.dynamic,
			Reviews:          c.whole.reviews,
			Daemons:          c.daemons,
			Offerings:        c.remembered,
			Fallbacks:        cfg.fallback,
			WithoutKarpenter: !asksKarpenter(cfg.settings),
		}.Read(ctx, &snapshot)...)
	}
	report := audit.Report{Findings: audit.Of(snapshot), Unread: unread}
	if a.baseline != "" {
		if report, err = report.Accept(baseline); err != nil {
			return fmt.Errorf("%w: --baseline: %w", errUsage, err)
		}
	}
	err = a.print(cmd.OutOrStdout(), report, report.Lines)
	switch {
	case err != nil:
		return err
	case a.failOn != "" && report.Fails(audit.Severity(a.failOn)):
		return errFindings
	case len(unread) > 0:
		return fmt.Errorf("could not read everything: %s", strings.Join(unread, "; "))
	}
	return nil
}
