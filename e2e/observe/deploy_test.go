package observe

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var (
	rulesFile     = filepath.Join("..", "..", "deploy", "alerts", "spot-handler.yaml")
	casesFiles    = filepath.Join("..", "..", "deploy", "alerts", "tests", "*.yaml")
	dashboardFile = filepath.Join("..", "..", "deploy", "dashboards", "spot-handler.json")
	runbookFile   = filepath.Join("..", "..", "deploy", "runbook.md")
	referenceFile = filepath.Join("..", "..", "deploy", "docs", "reference.md")
)

// runbookURL is where the alerts point to. The chart's prometheusRule.runbookUrl replaces it.
const runbookURL = "https://github.com/spot-handler/spot-handler/blob/main/deploy/runbook.md"

// Prometheus's own tool accepts the rules, and every case of theirs comes out as stated.
func TestAlertCases(t *testing.T) {
	programs := ForTest(t)
	for _, args := range [][]string{{"check", "rules", rulesFile}, append([]string{"test", "rules"}, files(t, casesFiles)...)} {
		if out, err := exec.CommandContext(t.Context(), programs.Promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// Every alert has a case in which it fires and one in which it does not.
func TestEveryAlertHasCases(t *testing.T) {
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, file := range files(t, casesFiles) {
		var cases struct {
			Tests []struct {
				Rules []struct {
					Name string           `json:"alertname"`
					Want []map[string]any `json:"exp_alerts"`
				} `json:"alert_rule_test"`
			}
		}
		if err := yaml.Unmarshal([]byte(read(t, file)), &cases); err != nil {
			t.Fatal(err)
		}
		for _, test := range cases.Tests {
			for _, r := range test.Rules {
				if len(r.Want) > 0 {
					fires[r.Name] = true
				} else {
					silent[r.Name] = true
				}
			}
		}
	}
	for _, r := range rules(t) {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: fires in a case: %t, does not in another: %t", r.Alert, fires[r.Alert], silent[r.Alert])
		}
	}
}

// Every alert says how urgent it is, what has happened, and where to read what to do; and
// the runbook covers nothing else.
func TestRunbook(t *testing.T) {
	var alerts []string
	for _, r := range rules(t) {
		alerts = append(alerts, r.Alert)
		if s := r.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s: severity %q", r.Alert, s)
		}
		if r.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", r.Alert)
		}
		if want := runbookURL + "#" + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url %q, want %q", r.Alert, r.Annotations["runbook_url"], want)
		}
	}
	text := read(t, runbookFile)
	var sections []string
	for _, found := range regexp.MustCompile(`(?m)^## (\S+)\n\n\*(critical|warning)[^*]*\*`).FindAllStringSubmatch(text, -1) {
		sections = append(sections, found[1])
		i := slices.IndexFunc(rules(t), func(r rule) bool { return r.Alert == found[1] })
		if i >= 0 && rules(t)[i].Labels["severity"] != found[2] {
			t.Errorf("%s is a %s in the runbook", found[1], found[2])
		}
	}
	if diff := cmp.Diff(alerts, sections); diff != "" {
		t.Errorf("alerts and sections of the runbook, in order (-alerts +runbook):\n%s", diff)
	}
	for _, found := range regexp.MustCompile(`\(#([a-z]+)\)`).FindAllStringSubmatch(text, -1) {
		if !slices.ContainsFunc(alerts, func(name string) bool { return strings.ToLower(name) == found[1] }) {
			t.Errorf("link to #%s, which is no section", found[1])
		}
	}
}

// A message that the runbook quotes as a line of the log is one.
func TestRunbookQuotesTheLog(t *testing.T) {
	code := ""
	for _, pattern := range []string{"cmd/*/*.go", "handler/*.go", "handler/*/*.go", "queue/*.go", "imds/*.go", "drain/*.go"} {
		for _, file := range files(t, filepath.Join("..", "..", filepath.FromSlash(pattern))) {
			if !strings.HasSuffix(file, "_test.go") {
				code += read(t, file)
			}
		}
	}
	runbook := strings.Join(strings.Fields(read(t, runbookFile)), " ") // as if it was not wrapped
	quoted := regexp.MustCompile("(?:[Ll]og|line|that|lines?),?(?: says)?(?: why)?:? `([a-z][a-z ]+ [a-z ]+)`").FindAllStringSubmatch(runbook, -1)
	if len(quoted) < 5 {
		t.Errorf("found %q only", quoted)
	}
	for _, q := range quoted {
		if !strings.Contains(code, `"`+q[1]) { // passed to Msg, or in a table of messages
			t.Errorf("nothing logs %q", q[1])
		}
	}
}

// Alerts and dashboard query metrics that the reference explains; another test compares
// those with the program. The optional rules query kube-state-metrics.
func TestMetricsOfQueries(t *testing.T) {
	queries := map[string]string{}
	for _, r := range rules(t) {
		queries[r.Alert] = r.Expr
	}
	for _, p := range dashboard(t).Panels {
		for _, target := range p.Targets {
			queries[p.Title+" "+target.RefID] = target.Expr
		}
	}
	reference := read(t, referenceFile)
	name := regexp.MustCompile(`\b(spot_handler|kube)_[a-z_]+`)
	for of, expr := range queries {
		names := name.FindAllString(expr, -1)
		if len(names) == 0 {
			t.Errorf("%s asks for none of our metrics: %s", of, expr)
		}
		for _, n := range names {
			if strings.HasPrefix(n, "kube_") && of == "SpotHandlerBudgetAllowsNothing" {
				continue
			}
			family := n
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if rest, ok := strings.CutSuffix(n, suffix); ok && strings.Contains(reference, "| `"+rest+"` | histogram") {
					family = rest
				}
			}
			if !strings.Contains(reference, "| `"+family+"` |") {
				t.Errorf("%s asks for %s, which the reference does not have", of, n)
			}
		}
	}
}

// The dashboard works in anybody's Grafana: it names no data source of ours, every panel
// says what it shows, and none covers another.
func TestDashboard(t *testing.T) {
	d := dashboard(t)
	if d.Title != "spot-handler" || d.SchemaVersion < 38 { // of Grafana 10
		t.Errorf("title %q, schema version %d", d.Title, d.SchemaVersion)
	}
	variables := map[string]string{}
	for _, v := range d.Templating.List {
		variables[v.Name] = v.Type
	}
	if diff := cmp.Diff(map[string]string{"datasource": "datasource", "cluster": "query"}, variables); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	ours := Datasource{Type: "prometheus", UID: "${datasource}"}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%q: id %d is another's", p.Title, p.ID)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := cells[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q is where %q is, or over the edge", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || p.Datasource != ours || len(p.Targets) == 0 {
			t.Errorf("panel %q: description %q, data source %v, %d queries", p.Title, p.Description, p.Datasource, len(p.Targets))
		}
		for _, target := range p.Targets {
			if target.Datasource != ours || !strings.Contains(target.Expr, `cluster=~"$cluster"`) {
				t.Errorf("panel %q: data source %v, query %s", p.Title, target.Datasource, target.Expr)
			}
		}
	}
}

// rule is an alert of deploy/alerts.
type rule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// rules are the alerts, in their order.
func rules(t *testing.T) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(read(t, rulesFile)), &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

func dashboard(t *testing.T) Dashboard {
	t.Helper()
	d, err := ReadDashboard(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("no file is %s: %v", pattern, err)
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The dashboard is in the form that grafana.com takes: it names all that it is shown with, has no number of one
// Grafana, and leaves the data source to a variable.
func TestDashboardCanBeShared(t *testing.T) {
	type panel struct {
		Type       string
		Datasource struct{ UID string }
		Panels     []panel
	}
	var d struct {
		ID       *int
		Inputs   []any                       `json:"__inputs"`
		Requires []struct{ Type, ID string } `json:"__requires"`
		Panels   []panel
	}
	if err := yaml.Unmarshal([]byte(read(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	needs := map[string]bool{"grafana/grafana": true, "datasource/prometheus": true}
	var look func([]panel)
	look = func(panels []panel) {
		for _, p := range panels {
			if p.Type != "row" {
				needs["panel/"+p.Type] = true
				if p.Datasource.UID != "${datasource}" {
					t.Errorf("a panel of type %s has the data source %q", p.Type, p.Datasource.UID)
				}
			}
			look(p.Panels)
		}
	}
	look(d.Panels)
	names := map[string]bool{}
	for _, r := range d.Requires {
		names[r.Type+"/"+r.ID] = true
	}
	if diff := cmp.Diff(needs, names); diff != "" || d.ID != nil || d.Inputs == nil || len(d.Inputs) > 0 {
		t.Errorf("id %v, inputs %v, requires (-want +got):\n%s", d.ID, d.Inputs, diff)
	}
}
