package main

import (
	"fmt"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// Set by the linker: -X main.version=… -X main.commit=….
var (
	version = "dev"
	commit  = "unknown"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  spot-handler version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return printVersion(cmd) },
	}
}

func printVersion(cmd *cobra.Command) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "spot-handler %s (%s, %s)\n", version, commit, runtime.Version())
	return err
}

// buildInfo is the metric that says what runs.
func buildInfo(mode string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "spot_handler_build_info",
		Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{
			"version": version, "commit": commit, "go_version": runtime.Version(), "mode": mode,
		},
	})
	g.Set(1)
	return g
}
