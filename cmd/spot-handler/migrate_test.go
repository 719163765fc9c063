package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"spot-handler/cmd/spot-handler/internal/migrate"
)

// migrated runs the command on a text.
func migrated(text string, args ...string) (string, error) {
	var out bytes.Buffer
	root := newRoot(env(nil), &out, &out)
	root.SetArgs(append([]string{"migrate"}, args...))
	root.SetIn(strings.NewReader(text))
	err := root.Execute()
	return out.String(), err
}

// The program takes the flags among the values.
func TestMigratedFlagsAreTheProgramsOwn(t *testing.T) {
	inputs, err := filepath.Glob(filepath.Join("internal", "migrate", "testdata", "*.in"))
	if err != nil || len(inputs) == 0 {
		t.Fatal(inputs, err)
	}
	for _, input := range inputs {
		text, err := migrated("", input)
		var values struct {
			Mode  string
			Flags map[string]any
		}
		if err = errors.Join(err, yaml.Unmarshal([]byte(text), &values)); err != nil {
			t.Fatal(err)
		}
		kept := []string{values.Mode, "--kubeconfig=x"}
		for name, value := range values.Flags {
			text := strings.Join(strings.Fields(strings.Trim(fmt.Sprint(value), "[]")), ",")
			flag := strings.ToLower(regexp.MustCompile(`[A-Z]`).ReplaceAllString(name, "-$0"))
			if flag != "webhook-proxy" { // which needs a file that is not there
				kept = append(kept, "--"+flag+"="+text)
			}
		}
		if _, err := parsed(kept, env(map[string]string{
			"NODE_NAME": "a", "SPOT_HANDLER_QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/1/q",
		})); err != nil {
			t.Errorf("%s: %q: %v", input, kept, err)
		}
	}
}

// From the standard input, from a file, and what is wrong use of it.
func TestMigrateCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "settings")
	if err := os.WriteFile(file, []byte("dryRun: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"-"}, {file}} {
		if out, err := migrated("dryRun: true\n", args...); err != nil || !strings.Contains(out, "dryRun: true") {
			t.Errorf("%q: %q, %v", args, out, err)
		}
	}
	for says, args := range map[string][]string{
		"no such file": {"/does/not/exist"}, "at most 1 arg": {"a", "b"}, "unknown flag: --output": {"--output=json"}, "no settings": nil,
	} {
		if _, err := migrated("", args...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: error %v, want one that says %q", args, err, says)
		}
	}
}

// What the tables name as ours exists.
func TestMigrateTables(t *testing.T) {
	known := map[string]bool{}
	for _, mode := range []string{modeIMDS, modeQueue} {
		cfg := settings{mode: mode}
		for _, g := range cfg.define() {
			for name := range flagsOf(g) {
				known["--"+name] = true
			}
		}
	}
	rows, err := migrate.Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows {
		for _, word := range strings.FieldsFunc(row.Here+" "+row.Remark, func(r rune) bool { return strings.ContainsRune(" `=,;:.)", r) }) {
			if strings.HasPrefix(word, "--") && !known[word] {
				t.Errorf("%s %s: there is no flag %s", row.Variable, row.Value, word)
			}
		}
	}
}

// The manual has the rows that differ, as `migrate` prints them.
func TestMigrateTableOfManual(t *testing.T) {
	or := func(text, otherwise string) string {
		if text == "" {
			return otherwise
		}
		return text
	}
	quote := func(name string) string { return or(strings.ReplaceAll("`"+name+"`", "``", ""), none) }
	known := map[string]bool{}
	settings, err := migrate.Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range settings {
		of := []string{quote(s.Value), or(s.Here, none), or(s.Remark, or(s.Elsewhere, none))}
		if s.Variable != "" {
			of = append([]string{quote(s.Variable)}, of...)
		}
		known[strings.Join(of, " | ")] = true
	}
	rows := rowsBelow(t, "## What differs")
	if len(rows) < 10 {
		t.Errorf("%d rows only", len(rows))
	}
	for _, row := range rows {
		if !known[strings.Join(row, " | ")] {
			t.Errorf("`migrate` has no row %q", row)
		}
	}
}
