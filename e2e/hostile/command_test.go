package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode"
)

// controls are the control characters in what a command has printed, with what is around the first.
func (o Outcome) controls() string {
	for _, text := range []string{string(o.Out), string(o.Err)} {
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
func (o Outcome) commands() (found []string) {
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
	if json.Unmarshal(o.Out, &decoded) == nil {
		walk(decoded, add)
		return found
	}
	for line := range strings.Lines(string(o.Out)) {
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
