package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the outputs of migrate in testdata anew")

// migrated runs the command on a text.
func migrated(t *testing.T, text string, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := migrate(args, strings.NewReader(text), &out, &errs); code != exitClean {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	return out.String()
}

// Every setting that aws-node-termination-handler has is in the tables, and no other.
func TestMigrateKnowsEverySetting(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "aws-node-termination-handler-1.25.6.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var theirs, ours []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			theirs = append(theirs, strings.TrimSpace(line))
		}
	}
	for _, s := range slices.Concat(settings, chartSettings) {
		if s.variable != "" {
			ours = append(ours, "variable "+s.variable)
		}
		if s.value != "" {
			ours = append(ours, "value "+s.value)
		}
	}
	slices.Sort(theirs)
	slices.Sort(ours)
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("settings (-theirs +in our tables):\n%s", diff)
	}
}

// A row says what there is here, or why there is nothing; what it is taken over to exists.
func TestMigrateTables(t *testing.T) {
	known := map[string]bool{}
	for _, mode := range []string{modeIMDS, modeQueue} {
		cfg := config{mode: mode}
		for _, g := range cfg.define() {
			for name := range flagsOf(g) {
				known["--"+name] = true
			}
		}
	}
	for _, s := range slices.Concat(settings, chartSettings) {
		name := s.variable + " " + s.value
		if s.here == "" && s.remark == "" {
			t.Errorf("%s: nothing is said of it", name)
		}
		ways := 0
		for _, is := range []bool{s.flag != "", s.env != "", s.path != "", s.convert != nil} {
			if is {
				ways++
			}
		}
		if ways > 1 {
			t.Errorf("%s is taken over in %d ways", name, ways)
		}
		for _, word := range strings.FieldsFunc(s.here+" "+s.remark, func(r rune) bool { return strings.ContainsRune(" `=,;:.)", r) }) {
			if strings.HasPrefix(word, "--") && !known[word] {
				t.Errorf("%s: there is no flag %s", name, word)
			}
		}
		if s.flag != "" && !known["--"+s.flag] {
			t.Errorf("%s: there is no flag --%s", name, s.flag)
		}
		if strings.Contains(s.here+s.remark, "|") {
			t.Errorf("%s: a cell of the manual's table cannot hold |", name)
		}
	}
}

func TestMigrateTableOfManual(t *testing.T) {
	cell := func(text string) string {
		if text == "" {
			return none
		}
		return text
	}
	quote := func(name string) string {
		if name == "" {
			return none
		}
		return "`" + name + "`"
	}
	var want [][]string
	for _, s := range settings {
		want = append(want, []string{quote(s.variable), quote(s.value), cell(s.here), cell(s.remark)})
	}
	if diff := cmp.Diff(want, rowsBelow(t, "### Its variables")); diff != "" {
		t.Errorf("(-table +manual):\n%s\nwant:\n%s", diff, markdown(want))
	}
	want = nil
	for _, s := range chartSettings {
		want = append(want, []string{quote(s.value), cell(s.here), cell(s.remark)})
	}
	if diff := cmp.Diff(want, rowsBelow(t, "### The other values of its chart")); diff != "" {
		t.Errorf("(-table +manual):\n%s\nwant:\n%s", diff, markdown(want))
	}
}

func markdown(rows [][]string) string {
	var b strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	return b.String()
}

// What is in testdata/migrate gives what stands beside it: .flags, .env, .values.
func TestMigrate(t *testing.T) {
	inputs, err := filepath.Glob(filepath.Join("testdata", "migrate", "*.in"))
	if err != nil || len(inputs) == 0 {
		t.Fatal(inputs, err)
	}
	for _, input := range inputs {
		for _, output := range []string{outputFlags, outputEnv, outputValues} {
			name := strings.TrimSuffix(input, "in") + output
			t.Run(filepath.Base(name), func(t *testing.T) {
				got := migrated(t, "", "--output="+output, input)
				if *update {
					if err := os.WriteFile(name, []byte(got), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				usable(t, output, got)
			})
		}
	}
}

// usable reads the output back as its reader would: flags and variables by the program,
// but for files that are not there; values as YAML.
func usable(t *testing.T, output, text string) {
	t.Helper()
	switch output {
	case outputFlags:
		command, _, _ := strings.Cut(text, "\n\n")
		args := strings.Fields(strings.ReplaceAll(command, " \\\n", "\n"))
		var kept []string
		for _, arg := range args[1:] {
			if strings.HasPrefix(arg, "--webhook-") || !strings.HasPrefix(arg, "--") && len(kept) > 0 {
				continue // files that are not there, and templates with spaces
			}
			kept = append(kept, arg)
		}
		if _, _, err := parse(append(kept, "--kubeconfig=x"), env(map[string]string{
			"NODE_NAME": "a", "SPOT_HANDLER_QUEUE_URL": "https://sqs.eu-west-1.amazonaws.com/1/q",
		}), nil); err != nil && !strings.Contains(err.Error(), "--node-name") {
			t.Errorf("%q: %v", kept, err)
		}
	case outputEnv:
		if variables, ok := readAssignments(text); !ok {
			t.Errorf("not only variables and comments: %v", variables)
		}
	default:
		var values map[string]any
		if err := yaml.Unmarshal([]byte(text), &values); err != nil || values["mode"] == nil {
			t.Errorf("values %v, %v", values, err)
		}
	}
}

// The defaults of the two are not the same: what nobody has set has to be said, too.
func TestMigrateOfDefaults(t *testing.T) {
	imds := migrated(t, "NODE_NAME=a\n")
	if !strings.HasPrefix(imds, "spot-handler imds \\\n  --rebalance=ignore") {
		t.Errorf("rebalance recommendations are not ignored:\n%s", imds)
	}
	if strings.Contains(imds, "TAG") || strings.Contains(imds, "enableASG") {
		t.Errorf("what has no effect is told:\n%s", imds)
	}
	off := migrated(t, "ENABLE_SPOT_INTERRUPTION_DRAINING=false\nENABLE_SCHEDULED_EVENT_DRAINING=false\n")
	for _, want := range []string{"--watch-spot=false", "--watch-scheduled-events=false"} {
		if !strings.Contains(off, want) {
			t.Errorf("no %q in:\n%s", want, off)
		}
	}
	for _, mode := range []string{"NODE_NAME=a\n", "ENABLE_SQS_TERMINATION_DRAINING=true\n"} {
		if cordon := migrated(t, mode+"CORDON_ONLY=true\n"); !strings.Contains(cordon, "--cordon-only=true") || strings.Contains(cordon, "--drain=false") {
			t.Errorf("not cordoned only:\n%s", cordon)
		}
	}
	chart := migrated(t, "logLevel: debug\n")
	if !strings.Contains(chart, "mode: imds") || strings.Contains(chart, "watchLifecycle: false") {
		t.Errorf("not the chart's own default of lifecycle hooks, which is on:\n%s", chart)
	}
	queue := migrated(t, "ENABLE_SQS_TERMINATION_DRAINING=true\nHEARTBEAT_INTERVAL=60\n")
	for _, want := range []string{"spot-handler queue", "--rebalance=replace", "--heartbeat-interval=60s", "--heartbeat-until=172800s", "CHECK_TAG_BEFORE_DRAINING=true (its default)", "--queue-url has to be"} {
		if !strings.Contains(queue, want) {
			t.Errorf("no %q in:\n%s", want, queue)
		}
	}
	older := migrated(t, "ENABLE_SQS_TERMINATION_DRAINING=true\nMANAGED_ASG_TAG=theirs\n")
	if !strings.Contains(older, "--managed-tag=theirs") {
		t.Errorf("the tag is not taken over from its older name:\n%s", older)
	}
	both := migrated(t, "ENABLE_SQS_TERMINATION_DRAINING=true\nMANAGED_ASG_TAG=theirs\nMANAGED_TAG=mine\n")
	if !strings.Contains(both, "--managed-tag=mine") {
		t.Errorf("the older name goes before the other:\n%s", both)
	}
	off = migrated(t, "ENABLE_SQS_TERMINATION_DRAINING=true\nMANAGED_TAG=mine\nCHECK_ASG_TAG_BEFORE_DRAINING=false\n")
	if strings.Contains(off, "managed-tag=") {
		t.Errorf("the tag is taken over though nobody looks at it:\n%s", off)
	}
	tagged := migrated(t, "enableSqsTerminationDraining: true\nmanagedTag: mine\n")
	if !strings.Contains(tagged, "managedTag: mine") {
		t.Errorf("the tag is not taken over:\n%s", tagged)
	}
}

func TestMigrateRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		args []string
		says string
	}{
		"nothing":   {"", nil, "no settings"},
		"prose":     {"this is: no: YAML", nil, "neither"},
		"scalar":    {"hello", nil, "no settings"},
		"no file":   {"", []string{"/does/not/exist"}, "no such file"},
		"two files": {"", []string{"a", "b"}, "want one file"},
		"output":    {"NODE_NAME=a", []string{"--output=json"}, "--output"},
		"flag":      {"NODE_NAME=a", []string{"--out"}, "--out"},
		"two objects": {"kind: DaemonSet\nspec: {env: [{name: ENABLE_SQS_TERMINATION_DRAINING, value: \"false\"}, {name: WORKERS, value: \"1\"}]}\n---\n" +
			"kind: Deployment\nspec: {env: [{name: ENABLE_SQS_TERMINATION_DRAINING, value: \"true\"}, {name: WORKERS, value: \"1\"}]}\n", nil,
			"more than one value of ENABLE_SQS_TERMINATION_DRAINING: "},
		"two of both": {"logLevel: debug\n---\nkind: Pod\nspec: {containers: [{env: [{name: DRY_RUN, value: \"true\"}]}]}\n", nil, "one of them"},
	} {
		var out, errs bytes.Buffer
		if code := migrate(tt.args, strings.NewReader(tt.text), &out, &errs); code == exitClean || !strings.Contains(errs.String(), tt.says) {
			t.Errorf("%s: exit code %d: %s, want one that says %q", name, code, &errs, tt.says)
		}
	}
}

// Anything may be piped in.
func FuzzMigrate(f *testing.F) {
	f.Add("ENABLE_REBALANCE_DRAINING=x\nWEBHOOK_TEMPLATE={{")
	f.Add("kind: List\nitems: [{spec: {env: [{name: 1}, {name: QUEUE_URL, valueFrom: 3}]}}]")
	f.Add("image: 3\nserviceAccount: []\nupdateStrategy: x\nprometheusServerPort: {}\nenablePrometheusServer: true")
	f.Fuzz(func(t *testing.T, text string) {
		for _, output := range []string{outputFlags, outputEnv, outputValues} {
			var out, errs bytes.Buffer
			migrate([]string{"--output=" + output}, strings.NewReader(text), &out, &errs)
		}
	})
}
