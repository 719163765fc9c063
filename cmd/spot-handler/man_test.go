package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra/doc"
)

var manDir = flag.String("man", "", "write the manual pages to this `directory`, an absolute path")

// The manual pages are written here, and by `go test -run TestManPages ./cmd/spot-handler -man DIR`:
// what writes them, cobra's doc, would add 280 kB and two modules to the program.
func TestManPages(t *testing.T) {
	dir := *manDir
	if dir == "" {
		dir = t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root := newRoot(env(nil), nil, nil)
	root.DisableAutoGenTag = true // the same pages from the same program
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "spot-handler", Manual: "spot-handler"}, dir); err != nil {
		t.Fatal(err)
	}
	for page, wants := range map[string][]string{
		"spot-handler.1":         {"spot-handler-imds(1)", "spot-handler-queue(1)", "spot-handler-status(1)", "spot-handler-audit(1)", "spot-handler-migrate(1)", "spot-handler-completion(1)"},
		"spot-handler-imds.1":    {`\fB--node-name\fP`, "SPOT_HANDLER_DRY_RUN", ".SH EXAMPLE"},
		"spot-handler-queue.1":   {`\fB--queue-url\fP`, "SPOT_HANDLER_DRY_RUN", ".SH EXAMPLE"},
		"spot-handler-status.1":  {`\fB--watch\fP`, ".SH EXAMPLE"},
		"spot-handler-audit.1":   {`\fB--fail-on\fP`, ".SH EXAMPLE"},
		"spot-handler-migrate.1": {"values.yaml", ".SH EXAMPLE"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s does not contain %q", page, want)
			}
		}
	}
}
