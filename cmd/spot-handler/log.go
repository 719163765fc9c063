package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/rs/zerolog"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"spot-handler/cmd/spot-handler/terminal"
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
	if format == logConsole || format == "" && terminal.NewOutput(w).IsTerminal() {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05.000", NoColor: true, FieldsOrder: fieldsOrder}
	}
	parsed, err := zerolog.ParseLevel(level)
	if err != nil {
		parsed = zerolog.InfoLevel
	}
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
