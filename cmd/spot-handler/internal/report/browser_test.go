package report

import (
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

//go:embed testdata/look.js
var look string

// seen is what look.js reports.
type seen struct {
	Dark      bool
	Requests  int      // of anything outside the page
	Alerts    int      // by scripts that came with a text of the cluster
	Wide      bool     // the page is wider than the window
	Overflows []string // texts that do not fit, or lie over each other
	Faint     []string // texts with too little contrast
	Looked    int      // at so many texts
}

// The page is looked at in a real browser: every text fits, is readable in the light and in the
// dark scheme, nothing is asked of the network, and the browser complains of nothing. Each look
// takes seconds on a busy machine, so there are two.
func TestPageInBrowser(t *testing.T) {
	browser, err := exec.LookPath("chromium")
	switch {
	case err != nil && os.Getenv("CI") != "": // what CI does not look at, nobody does
		t.Fatal(err)
	case err != nil:
		t.Skipf("the page is not looked at: %v", err)
	}
	rec, f := massInterruption()
	for _, tt := range []struct {
		name   string
		report Report
		dark   bool
		width  string
	}{
		{"mass interruption, wide and dark", Of(rec, f), true, "1280"},
		{"hostile, narrow and light", hostileReport(), false, "500"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			page := strings.Replace(render(t, tt.report), "style-src", "script-src 'unsafe-inline'; style-src", 1)
			page = strings.Replace(page, "</body>", "<script>"+look+"</script></body>", 1)
			s := show(t, browser, page, tt.dark, tt.width)
			if s.Dark != tt.dark || s.Looked < 50 {
				t.Fatalf("the browser has not looked: %+v", s)
			}
			if s.Requests > 0 || s.Alerts > 0 || s.Wide {
				t.Errorf("%d requests, %d alerts, wider than the window: %v; want none of it", s.Requests, s.Alerts, s.Wide)
			}
			for _, list := range [][]string{s.Overflows, s.Faint} {
				for _, what := range list[:min(len(list), 10)] {
					t.Error(what)
				}
			}
		})
	}
}

var seenInPage = regexp.MustCompile(`name="seen" content="([^"]*)"`)

// show has the browser look at a page with look.js in it.
func show(t *testing.T, browser, page string, dark bool, width string) (s seen) {
	t.Helper()
	args := []string{"--window-size=" + width + ",900"}
	if dark {
		args = append(args, "--blink-settings=preferredColorScheme=0")
	}
	dom, said := chromium(t, browser, page, append(args, "--enable-logging=stderr")...)
	for line := range strings.Lines(said) {
		if strings.Contains(line, ":CONSOLE") {
			t.Error(line)
		}
	}
	found := seenInPage.FindStringSubmatch(dom)
	if found == nil {
		t.Fatalf("the browser did not report:\n%s", said)
	}
	text, err := base64.StdEncoding.DecodeString(found[1])
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// chromium loads a page without a network, and returns the document and what the browser says.
func chromium(t *testing.T, browser, page string, more ...string) (dom, said string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	args := slices.Concat([]string{
		"--headless", "--disable-gpu", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", "--user-data-dir=" + t.TempDir(), "--dump-dom",
	}, more)
	if os.Getuid() == 0 {
		args = append(args, "--no-sandbox") // which it has for users only
	}
	cmd := exec.CommandContext(t.Context(), browser, append(args, "file://"+path)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &errs)
	}
	return string(out), errs.String()
}
