package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"spot-handler/cmd/spot-handler/internal/console"
)

// The values of --log-format; without one a terminal decides.
const (
	logJSON    = "json"
	logConsole = "console"
)

// newLogger makes the process's logger. Client-go's own words go through it too: its
// warnings and errors, and with debug the rest.
func newLogger(w io.Writer, level, format string) zerolog.Logger {
	zerolog.TimeFieldFormat = time.RFC3339Nano
	if format == logConsole || format == "" && console.NewOutput(w).IsTerminal() {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05.000", NoColor: true, FieldsOrder: fieldsOrder}
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

// fieldsOrder is the order of fields in the console format; others follow by name.
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
	if limit := containerLimit("/sys/fs/cgroup/memory.max"); limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit / 10 * 8) // the rest is for stacks of the kernel, and pages of the program's file
	}
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "spot-handler", cmd.Root().Version)
			return err
		},
	}
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

// httpServer serves metrics and health. ready gives the reason why the process is
// not ready, or nil.
type httpServer struct {
	listener net.Listener
	metrics  prometheus.Gatherer
	ready    func() error
}

// Anybody in the cluster may connect, and nobody may stall the process or fill its memory by it.
const (
	// maxConnections is how many there are at a time: a few Prometheus servers, the kubelet's
	// probes, and somebody who looks.
	maxConnections = 32

	// maxHeaderBytes is several times what Prometheus and the kubelet send.
	maxHeaderBytes = 8 << 10

	// requestTimeout bounds how long somebody takes to ask, and scrapeTimeout how long a scrape waits
	// for its turn. answerTimeout is for that and for reading the answer: as long as Prometheus waits
	// by default.
	requestTimeout = 5 * time.Second
	scrapeTimeout  = 5 * time.Second
	answerTimeout  = 10 * time.Second
)

// shutdownHTTP bounds how long a scrape in progress holds up the end of the process:
// a scrape takes milliseconds.
const shutdownHTTP = 2 * time.Second

func (s httpServer) Run(ctx context.Context) error {
	mux := http.NewServeMux()
	// TimeoutHandler keeps the answer until it is complete, so a slow reader holds up no other scrape.
	mux.Handle("GET /metrics", http.TimeoutHandler(inTurn(promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{})), scrapeTimeout, "metrics took too long"))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{
		Handler: mux, MaxHeaderBytes: maxHeaderBytes, ConnState: new(connections).changed,
		ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: 2 * time.Minute,
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownHTTP)
		defer cancel()
		_ = server.Shutdown(bounded) // the process ends either way
	})
	if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("serve http: %w", err)
	}
	<-ended // Serve returns as soon as Shutdown begins
	return nil
}

// inTurn serves one request after the other.
func inTurn(next http.Handler) http.Handler {
	var turn sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn.Lock()
		defer turn.Unlock()
		if r.Context().Err() == nil { // there is still somebody who waits for the answer
			next.ServeHTTP(w, r)
		}
	})
}

// connections are the open ones, oldest first. They are never more than maxConnections: whoever
// has the most then loses the oldest, so a probe finds a place whatever others hold.
type connections struct {
	mu   sync.Mutex
	open []net.Conn
}

// changed is called by http.Server before it reads from a new connection.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(c.open) == maxConnections {
			last := c.surplus()
			if tcp, ok := c.open[last].(interface{ SetLinger(int) error }); ok {
				_ = tcp.SetLinger(0) // what nobody has read yet is dropped, or the kernel would keep it
			}
			_ = c.open[last].Close()
			c.open = slices.Delete(c.open, last, last+1)
		}
		c.open = append(c.open, conn)
	case http.StateClosed:
		c.open = slices.DeleteFunc(c.open, func(o net.Conn) bool { return o == conn })
	}
}

// surplus is the oldest connection of the address that has the most.
func (c *connections) surplus() int {
	of := map[string]int{}
	for _, conn := range c.open {
		of[host(conn)]++
	}
	found := 0
	for i, conn := range c.open {
		if of[host(conn)] > of[host(c.open[found])] {
			found = i
		}
	}
	return found
}

func host(conn net.Conn) string {
	host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()) // one that cannot be read counts with others such
	return host
}
