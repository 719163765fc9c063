package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command that fails is not the last: the others run, and the outcome is a failure.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, content := range map[string]string{
		"go.mod":           "module m\n\ngo 1.26\n",
		"good/a_test.go":   "package a\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {}\n",
		"bad/a_test.go":    "package a\n\nimport \"testing\"\n\nfunc TestBad(t *testing.T) { t.Error(\"wrong\") }\n",
		"beside/a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestBeside(t *testing.T) {}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"-beside", "go test ./beside", "go test ./good"}, 0, []string{"ok  \tm/good", "ok  \tm/beside", "2 tests in 2 packages", "s  go test ./beside\n"}},
		{[]string{"go test ./bad", "go test ./good"}, 1, []string{"--- FAIL: TestBad", "wrong", "ok  \tm/good"}},
		{[]string{"-beside", "go test ./bad", "go test ./good"}, 1, []string{"FAIL\tm/bad"}},
		{[]string{"-after", "go test ./beside", "go test ./bad"}, 1, []string{"FAIL\tm/bad", "ok  \tm/beside"}},
		{[]string{"-after", "go test ./bad", "-after", "go test ./beside", "go test ./good"}, 1, []string{"ok  \tm/good", "ok  \tm/beside", "FAIL\tm/bad"}},
		{[]string{"go vet ./good"}, 1, []string{"it is not a go test"}},
		{nil, 2, []string{"no command"}},
	} {
		var out strings.Builder
		if code := run(t.Context(), tt.args, &out, &out); code != tt.code {
			t.Errorf("%q: exit code %d, want %d", tt.args, code, tt.code)
		}
		for _, what := range tt.says {
			if !strings.Contains(out.String(), what) {
				t.Errorf("%q: no %q in\n%s", tt.args, what, out.String())
			}
		}
	}
}
