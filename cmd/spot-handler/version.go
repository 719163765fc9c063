package main

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
)

// Set by the linker: -X main.version=… -X main.commit=….
var (
	version = "dev"
	commit  = "unknown"
)

func versionText() string {
	return "spot-handler " + version + " (" + commit + ", " + runtime.Version() + ")"
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
