package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"spot-handler/cmd/spot-handler/internal/report"
	"spot-handler/handler/webhook"
)

// rowsBelow are the rows `| `name` | ... |` of the table below a heading. The manual's
// tables are what operators work with: they are compared with the program, in both
// directions.
func rowsBelow(t *testing.T, heading string) [][]string {
	t.Helper()
	var rows [][]string
	for line := range strings.Lines(sectionOf(t, heading)) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	return rows
}

// none is how the manual writes that there is no default, or no label.
const none = "–"

func TestFlagsOfManual(t *testing.T) {
	common := rowsBelow(t, "### Flags of all modes")
	for mode, own := range map[string][][]string{
		modeIMDS: rowsBelow(t, "### Flags of `imds`"), modeDrain: nil, modeQueue: rowsBelow(t, "### Flags of `queue`"),
	} {
		documented := map[string]string{}
		for _, row := range slices.Concat(common, own) {
			if len(row) != 4 || row[2] == "" || row[3] == "" && !strings.Contains(row[2], "required") {
				t.Errorf("%s: row %q, want flag, default, meaning and when to change it", mode, row)
				continue
			}
			documented[row[0]] = row[1]
			for variable := range commonVariables {
				if row[0] == "`--"+variable+"`" && !strings.Contains(row[2], "`"+commonVariables[variable]+"`") {
					t.Errorf("%s: row %q does not name %s", mode, row, commonVariables[variable])
				}
			}
		}
		defined := map[string]string{}
		cfg := settings{mode: mode}
		for _, g := range cfg.define() {
			for name, flag := range flagsOf(g) {
				defined["`--"+name+"`"] = flag
			}
		}
		if diff := cmp.Diff(defined, documented); diff != "" {
			t.Errorf("flags of %s (-defined +manual):\n%s", mode, diff)
		}
	}
}

// --help is where the flags of the commands for people are described.
func TestFlagsOfCommandsForPeople(t *testing.T) {
	for _, cmd := range []*cobra.Command{newStatus(), newObserve(), newPlan(), newAudit(), newRehearse()} {
		help := cmd.UsageString()
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || !strings.Contains(help, "--"+f.Name+" ") {
				t.Errorf("%s --help does not describe --%s", cmd.Name(), f.Name)
			}
		})
	}
}

// What --require takes is what the manual says.
func TestFiguresOfManual(t *testing.T) {
	var documented []string
	for _, row := range rowsBelow(t, "## In a pipeline") {
		documented = append(documented, strings.Trim(row[0], "`"))
	}
	slices.Sort(documented)
	_, err := report.ParseRequirements("?")
	_, names, _ := strings.Cut(err.Error(), "one of ") // all that there are
	if diff := cmp.Diff(strings.Split(names, ", "), documented); diff != "" {
		t.Errorf("figures (-defined +manual):\n%s", diff)
	}
}

// flagsOf are the defaults of the group's flags by name.
func flagsOf(g group) map[string]string {
	defaults := map[string]string{}
	for _, line := range regexp.MustCompile(`(?m)^ +--([a-z-]+)`).FindAllStringSubmatch(g.FlagUsages(), -1) {
		flag := g.Lookup(line[1])
		defaults[flag.Name] = "`" + flag.DefValue + "`"
		if flag.DefValue == "" || flag.DefValue == "[]" {
			defaults[flag.Name] = none
		}
	}
	return defaults
}

func TestMetricsOfManual(t *testing.T) {
	exposed := map[string]string{}
	for _, text := range []string{scrapeOf(t, modeIMDS), scrapeOf(t, modeQueue)} {
		maps.Copy(exposed, families(text))
	}
	documented := map[string]string{}
	for _, row := range rowsBelow(t, "## Metrics") {
		if len(row) != 4 || row[3] == "" {
			t.Errorf("row %q, want metric, type, labels and meaning", row)
			continue
		}
		documented[strings.Trim(row[0], "`")] = row[1] + " of " + row[2]
	}
	if diff := cmp.Diff(exposed, documented); diff != "" {
		t.Errorf("metrics (-exposed +manual):\n%s", diff)
	}
}

func TestTemplateFieldsOfManual(t *testing.T) {
	var fields, documented []string
	for field := range reflect.TypeFor[webhook.Message]().Fields() {
		fields = append(fields, "`."+field.Name+"`")
	}
	for _, row := range rowsBelow(t, "## Templates") {
		documented = append(documented, strings.Split(row[0], ", ")...)
	}
	if diff := cmp.Diff(fields, documented); diff != "" {
		t.Errorf("fields of a template (-defined +manual):\n%s", diff)
	}
}

// The manual's template is one.
func TestTemplateOfManual(t *testing.T) {
	_, rest, _ := strings.Cut(sectionOf(t, "## Templates"), "\n```\n")
	template, _, ok := strings.Cut(rest, "\n```\n")
	if !ok {
		t.Fatal("no template")
	}
	if _, err := webhook.ParseTemplate(template, http.Header{}); err != nil {
		t.Error(err)
	}
}

// scrapeOf runs the program in a mode, with nothing there that it could talk to, and
// returns its metrics.
func scrapeOf(t *testing.T, mode string) string {
	const nobody = "http://127.0.0.1:9" // the discard port, which nothing serves
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	err := os.WriteFile(kubeconfig, []byte(`{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"a"}}],`+
		`"clusters":[{"name":"a","cluster":{"server":"`+nobody+`"}}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AWS_EC2_METADATA_SERVICE_ENDPOINT": nobody,
	} {
		t.Setenv(name, value)
	}
	args := []string{mode, "--kubeconfig=" + kubeconfig, "--http-addr=127.0.0.1:0"}
	if mode == modeIMDS {
		args = append(args, "--node-name=node-1")
	} else {
		args = append(args, "--queue-url="+nobody+"/123456789012/queue")
	}

	ctx, stop := context.WithCancel(t.Context())
	stderr, ended := &buffer{}, make(chan int, 1)
	go func() { ended <- run(ctx, args, func(string) string { return "" }, io.Discard, stderr) }()
	defer func() {
		stop()
		if code := <-ended; code != exitClean {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	}()
	address := regexp.MustCompile(`"http_addr":"([^"]+)"`)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		found := address.FindStringSubmatch(stderr.String())
		if found == nil {
			continue
		}
		resp, err := http.Get("http://" + found[1] + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	t.Fatalf("%s: not started: %s", mode, stderr)
	return ""
}

// families are the type and the labels of our metrics in the text.
func families(text string) map[string]string {
	labels := map[string]map[string]bool{}
	types := map[string]string{}
	label := regexp.MustCompile(`[{,]([a-z_]+)="`)
	family := ""
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(strings.TrimSpace(rest), " ")
			if family = name; strings.HasPrefix(name, "spot_handler_") {
				types[name], labels[name] = kind, map[string]bool{}
			}
		} else if !strings.HasPrefix(line, "#") && labels[family] != nil {
			for _, found := range label.FindAllStringSubmatch(line, -1) {
				if found[1] != "le" {
					labels[family][found[1]] = true
				}
			}
		}
	}
	found := map[string]string{}
	for name, kind := range types {
		list := none
		if len(labels[name]) > 0 {
			list = strings.Join(slices.Sorted(maps.Keys(labels[name])), ", ")
		}
		found[name] = kind + " of " + list
	}
	return found
}

// A direct dependency has its reason beside it, and there are few.
func TestDependenciesHaveReasons(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	required := regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) v\S+(.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(required) < 10 {
		t.Fatalf("%d dependencies only", len(required))
	}
	direct := 0
	for _, found := range required {
		if found[2] != " // indirect" {
			direct++
		}
		if len(strings.TrimPrefix(found[2], " // ")) < len("metrics") {
			t.Errorf("go.mod does not say what %s is for", found[1])
		}
	}
	if direct > 26 {
		t.Errorf("%d direct dependencies, want at most 26", direct)
	}
}

// buffer is written and read at the same time.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

var _ fmt.Stringer = (*buffer)(nil)

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
