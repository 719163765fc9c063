package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAuditCommand(t *testing.T) {
	baseline := filepath.Join(t.TempDir(), "known.json")
	var known bytes.Buffer
	if code := run(t.Context(), []string{"audit", "-o", "json", "--kubeconfig=" + readOnly(t, "")}, env(nil), &known, &known); code != exitClean {
		t.Fatalf("exit code %d: %s", code, &known)
	}
	if err := os.WriteFile(baseline, known.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		forbidden   string
		args        []string
		code        int
		out, notice string
	}{
		"findings":       {"", nil, exitClean, "SH103  warning", ""},
		"fail":           {"", []string{"--fail-on=warning"}, exitFound, "SH103  warning", "--fail-on"},
		"not so bad":     {"", []string{"--fail-on=critical"}, exitClean, "SH103  warning", ""},
		"known":          {"", []string{"--fail-on=warning", "--baseline=" + baseline}, exitClean, "The baseline accepts 1 more.", ""},
		"json":           {"", []string{"-o=json"}, exitClean, `"id": "SH103"`, ""},
		"no deployments": {"deployments", nil, exitRuntime, "SH103", "could not read everything: list deployments: not allowed"},
		"no nodes":       {"/nodes", nil, exitRuntime, "SH103", "list nodes: not allowed"},
		"no pods":        {"/pods", nil, exitRuntime, "Nothing was found in what could be read.", "list pods: not allowed"},
		"no severity":    {"", []string{"--fail-on=all"}, exitUsage, "", "want one of critical, warning"},
		"no baseline":    {"", []string{"--baseline=/does/not/exist"}, exitUsage, "", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs bytes.Buffer
			args := append([]string{"audit", "--kubeconfig=" + readOnly(t, tt.forbidden)}, tt.args...)
			if code := run(t.Context(), args, env(nil), &out, &errs); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !strings.Contains(out.String(), tt.out) || !strings.Contains(errs.String(), tt.notice) || (tt.notice == "") != (errs.Len() == 0) {
				t.Errorf("want %q and %q, got\n%s\nand\n%s", tt.out, tt.notice, &out, &errs)
			}
		})
	}
}
