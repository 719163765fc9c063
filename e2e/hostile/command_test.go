package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"spot-handler/e2e/daemon"
)

// outcome is how a command has ended.
type outcome struct {
	args     []string
	code     int
	peak     int // MiB
	took     time.Duration
	out, err []byte
}

// command runs one of those for people, with an operator's kubeconfig.
func command(ctx context.Context, kubeconfig string, args ...string) (outcome, error) {
	path, err := daemon.Build()
	if err != nil {
		return outcome{}, err
	}
	o := outcome{args: args}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	if err := daemon.StartTied(cmd); err != nil {
		return o, err
	}
	ended := make(chan struct{})
	peak := make(chan int, 1)
	go func() { peak <- peakOf(cmd.Process.Pid, ended) }()
	err = cmd.Wait()
	close(ended)
	o.peak, o.took, o.code = <-peak, time.Since(began), cmd.ProcessState.ExitCode()
	o.out, o.err = out.Bytes(), errs.Bytes()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return o, err
	}
	return o, nil
}

// controls are the control characters in what a command has printed, with what is around the first.
func (o outcome) controls() string {
	for _, text := range []string{string(o.out), string(o.err)} {
		i := strings.IndexFunc(text, func(r rune) bool {
			return unicode.IsControl(r) && r != '\n' && r != '\t' || r == '\u2028' || r == '\u202e'
		})
		if i >= 0 {
			return fmt.Sprintf("%q", text[max(0, i-60):min(len(text), i+60)])
		}
	}
	return ""
}

// programs are those whose commands are printed to be run.
var programs = []string{"kubectl", "helm", "aws", "echo", "spot-handler"}

// commands are what the output offers to be run.
func (o outcome) commands() (found []string) {
	seen := map[string]bool{}
	add := func(text string) {
		for _, program := range programs {
			if i := strings.Index(text, program+" "); i >= 0 && !seen[text[i:]] {
				seen[text[i:]] = true
				found = append(found, text[i:])
			}
		}
	}
	var decoded any
	if json.Unmarshal(o.out, &decoded) == nil {
		walk(decoded, add)
		return found
	}
	for line := range strings.Lines(string(o.out)) {
		add(line)
	}
	return found
}

func walk(value any, see func(string)) {
	switch v := value.(type) {
	case string:
		see(v)
	case []any:
		for _, inner := range v {
			walk(inner, see)
		}
	case map[string]any:
		for _, inner := range v {
			walk(inner, see)
		}
	}
}

// bench is where printed commands are run: a directory with programs of their names that do
// nothing, and touch, by which a name that is not quoted leaves its canary.
func bench(dir string) (path string, err error) {
	for _, program := range append(programs, "xargs", "jq") {
		if err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
			return "", err
		}
	}
	touch, err := exec.LookPath("touch")
	if err != nil {
		return "", err
	}
	return dir, os.Symlink(touch, filepath.Join(dir, "touch"))
}

// runs returns the first of the commands that makes a shell run what a tenant wrote.
func runs(ctx context.Context, path, canary string, commands []string) (string, error) {
	for _, text := range commands {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		cmd := exec.CommandContext(bounded, "/bin/sh", "-c", text)
		cmd.Env, cmd.Dir = []string{"PATH=" + path}, path
		_ = cmd.Run() // what it says of other programs is nobody's concern
		cancel()
		if _, err := os.Stat(canary); err == nil {
			return text, os.Remove(canary)
		}
	}
	return "", ctx.Err()
}
