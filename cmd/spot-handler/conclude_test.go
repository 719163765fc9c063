package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/report"
)

// The outcome goes to stdout, what could not be watched to stderr, and the page to the file, if there is one. What was
// required and isn't so is an error, after all that.
func TestConclude(t *testing.T) {
	seen := observe.Recording{From: time.Now(), To: time.Now(), Unread: []string{"pods: forbidden"}}
	for name, tt := range map[string]struct {
		page     string
		require  string
		broken   bool
		writable bool
	}{
		"nothing asked for":        {"", "", false, true},
		"a page":                   {"page.html", "", false, true},
		"a page, and requirements": {"page.html", "slack=20s", true, true},
		"a page in no directory":   {"no/page.html", "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			f := outcomeFlags{report: tt.page}
			if tt.require != "" {
				var err error
				if f.require, err = report.ParseRequirements(tt.require); err != nil {
					t.Fatal(err)
				}
			}
			var stdout, stderr bytes.Buffer
			err := f.conclude(report.Of(seen, nil), &commonFlags{format: console.TableFormat}, &stdout, &stderr)
			switch {
			case !tt.writable:
				if err == nil || !strings.Contains(err.Error(), "write report") {
					t.Errorf("%v, want that the report could not be written", err)
				}
				return
			case tt.broken && (!errors.Is(err, errRequired) || !strings.Contains(err.Error(), "slack=20s")):
				t.Errorf("%v, want it to name the requirement", err)
			case !tt.broken && err != nil:
				t.Error(err)
			}
			if stdout.Len() == 0 || stderr.String() != "could not watch: pods: forbidden\n" {
				t.Errorf("stdout %q, stderr %q", &stdout, &stderr)
			}
			pages, _ := filepath.Glob("*")
			if (len(pages) == 1) != (tt.page != "") {
				t.Errorf("files %q", pages)
			}
			if tt.page != "" {
				if text, err := os.ReadFile(tt.page); err != nil || !bytes.Contains(text, []byte("</html>")) {
					t.Errorf("page of %d bytes, %v", len(text), err)
				}
			}
		})
	}
}
