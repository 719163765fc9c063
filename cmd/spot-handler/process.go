package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"spot-handler/cmd/spot-handler/internal/console"
)

// newLogger makes the process's logger, which writes JSON, or lines for people to a terminal.
// Client-go's own words go through it too: its warnings and errors, and with debug the rest.
func newLogger(w io.Writer, level string) zerolog.Logger {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	if console.NewOutput(w).IsTerminal() {
		w = forPeople(w)
	}
	parsed, _ := zerolog.ParseLevel(level) // the flag takes no other
	logger := zerolog.New(w).Level(parsed).With().Timestamp().Logger()
	client := logger.With().Str("component", "client-go").Logger()
	if parsed > zerolog.DebugLevel {
		client = client.Level(zerolog.WarnLevel)
	}
	klog.SetSlogLogger(slog.New(zerolog.NewSlogHandler(client)))
	utilruntime.ErrorHandlers[0] = handleClientError
	return logger
}

// forPeople turns lines of JSON into lines that people read.
func forPeople(w io.Writer) io.Writer {
	return zerolog.ConsoleWriter{
		Out:         w,
		TimeFormat:  "15:04:05.000",
		NoColor:     true,
		FieldsOrder: fieldsOrder,
	}
}

var logClientError = utilruntime.ErrorHandlers[0]

// handleClientError logs errors of client-go, but for those of what has been stopped: a drain's
// watches fail with its end, as planned.
func handleClientError(ctx context.Context, err error, message string, fields ...any) {
	if ctx.Err() == nil {
		logClientError(ctx, err, message, fields...)
		return
	}
	klog.FromContext(ctx).V(1).Info(message, append(fields, "err", err)...)
}

// fieldsOrder is the order of fields in the lines for people; others follow by name.
var fieldsOrder = []string{
	"component", "node", "instance_id", "kind", "source", "deadline", "remaining_seconds", "pod", "message_id", "reason", "attempt",
}

// part is a logger for one component of the program.
func part(logger zerolog.Logger, name string) zerolog.Logger {
	return logger.With().Str("component", name).Logger()
}

// tuneMemory has the heap grow by so many percent between two garbage collections: few for the daemon,
// which idles nearly all the time, on every spot node, with a heap of a few MiB; many for a command, which
// reads a whole cluster once, and ends. Near the container's limit the garbage collector works harder,
// before the kernel ends the process. GOMEMLIMIT overrides that.
func tuneMemory(percent int) {
	debug.SetGCPercent(percent)
	if limit := heapLimit(containerLimit("/sys/fs/cgroup/memory.max"), os.Getenv("GOMEMLIMIT")); limit > 0 {
		debug.SetMemoryLimit(limit)
	}
}

// heapLimit is how much of a container's memory Go's runtime may use; zero if the container has no limit, or if
// GOMEMLIMIT is given. The rest is for kernel stacks and pages of the program's file.
func heapLimit(container int64, given string) int64 {
	if given != "" {
		return 0
	}
	return container / 10 * 8
}

// containerLimit is the container's memory limit in bytes; zero if there is none or it cannot be read, as
// with version 1 of cgroups.
// https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
func containerLimit(file string) int64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	limit, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" is none
	return limit
}

// Set by the linker: -X main.version=… -X main.commit=….
var (
	version = "dev"
	commit  = "unknown"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Example: "  spot-handler version", Args: cobra.NoArgs,
		RunE: printVersion,
	}
}

func printVersion(cmd *cobra.Command, _ []string) error {
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "spot-handler %s (%s, %s)\n", version, commit, runtime.Version())
	return err
}

// buildInfo is the metric that says what runs.
func buildInfo(mode string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "spot_handler_build_info",
		Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{
			"version": version, "commit": commit, "go_version": runtime.Version(), "mode": mode,
		},
	}, func() float64 { return 1 })
}
