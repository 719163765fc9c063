package main

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// run runs the program under its own name.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	return runAs(ctx, "spot-handler", args, getenv, stdout, stderr)
}

func TestExitCodes(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		code int
		out  string
	}{
		"help":                 {[]string{"--help"}, exitClean, "Usage:"},
		"help command":         {[]string{"help", "queue"}, exitClean, "--queue-url"},
		"mode help":            {[]string{"queue", "--help"}, exitClean, "--queue-url"},
		"help, though wrong":   {[]string{"queue", "--bogus", "-h"}, exitClean, "--queue-url"},
		"version flag":         {[]string{"--version"}, exitClean, "spot-handler dev ("},
		"version":              {[]string{"version"}, exitClean, "spot-handler dev ("},
		"completion":           {[]string{"completion", "bash"}, exitClean, "__start_spot-handler"},
		"nothing":              {nil, exitUsage, "give a command"},
		"unknown command":      {[]string{"evict"}, exitUsage, `unknown command "evict"`},
		"mistyped command":     {[]string{"qeue", "--margin=5s"}, exitUsage, "Did you mean this?\n\tqueue"},
		"flag of no command":   {[]string{"--queue-url=a"}, exitUsage, "unknown flag: --queue-url"},
		"wrong use":            {[]string{"imds", "--bogus"}, exitUsage, "unknown flag: --bogus"},
		"mistyped flag":        {[]string{"queue", "--marign=5s"}, exitUsage, "unknown flag: --marign; did you mean --margin?"},
		"mistyped status flag": {[]string{"status", "--ouput=json"}, exitUsage, "unknown flag: --ouput; did you mean --output?"},
		"migrate of no file":   {[]string{"migrate", "/does/not/exist"}, exitUsage, "no such file"},
		"too many arguments":   {[]string{"version", "1"}, exitUsage, `unknown command "1" for "spot-handler version"`},
		"no cluster":           {[]string{"imds", "--node-name=a", "--kubeconfig=/does/not/exist"}, exitUsage, "--kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if code := run(t.Context(), tt.args, env(nil), &out, &out); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(out.String(), tt.out) {
				t.Errorf("output does not contain %q:\n%s", tt.out, out.String())
			}
		})
	}
}

// What a shell asks for when somebody presses Tab.
func TestCompletion(t *testing.T) {
	for name, tt := range map[string]struct {
		typed []string
		want  string
	}{
		"command": {[]string{"qu"}, "queue\t"},
		"flag":    {[]string{"queue", "--margin=5s", "--queue-u"}, "--queue-url\t"},
		"value":   {[]string{"queue", "--rebalance", ""}, "cordon\n"},
		"wrong":   {[]string{"imds", "--bogus=1", "--log-level="}, ":0\n"}, // nothing, and no error
		"output":  {[]string{"plan", "--output=y"}, "yaml\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(t.Context(), append([]string{cobra.ShellCompRequestCmd}, tt.typed...), env(nil), &out, &errs); code != exitClean || !strings.Contains(out.String(), tt.want) {
				t.Errorf("exit code %d, %q, want %q; %s", code, &out, tt.want, &errs)
			}
		})
	}
}

func TestHelpIsCompleteAndFitsTheTerminal(t *testing.T) {
	for _, cmd := range newRoot(env(nil), nil, nil).Commands() {
		var out bytes.Buffer
		if code := run(t.Context(), []string{cmd.Name(), "--help"}, env(nil), &out, &out); code != exitClean {
			t.Errorf("%s --help: exit code %d", cmd.Name(), code)
		}
		if !strings.Contains(out.String(), "\nExamples:\n  ") || cmd.Short == "" {
			t.Errorf("%s has no example, or no short text:\n%s", cmd.Name(), &out)
		}
		if empty := regexp.MustCompile(`(?m)^[A-Z][a-z ]*:\n(\n|\z)`).FindString(out.String()); empty != "" {
			t.Errorf("%s: nothing below %q", cmd.Name(), empty)
		}
		if twice := regexp.MustCompile(`\(default: [^)]*\)\s+\(default .*`).FindString(out.String()); twice != "" {
			t.Errorf("%s: two defaults: %s", cmd.Name(), twice)
		}
		for line := range strings.Lines(out.String()) {
			if len(line) > helpWidth+1 {
				t.Errorf("%s: %d columns: %s", cmd.Name(), len(line), line)
			}
		}
	}
}

// Scripts rely on these, as the manual documents them.
func TestExitCodesAreThoseOfTheManual(t *testing.T) {
	for name, tt := range map[string][2]int{"clean": {exitClean, 0}, "failed": {exitRuntime, 1}, "wrong use": {exitUsage, 2}, "found, or not as required": {exitFound, 3}} {
		if tt[0] != tt[1] {
			t.Errorf("%s: %d, want %d", name, tt[0], tt[1])
		}
	}
}
