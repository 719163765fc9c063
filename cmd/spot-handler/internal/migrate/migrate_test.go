package migrate

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the outputs in testdata again")

// migrated converts values of the chart, or lines NAME=value, of which it makes a pod with variables.
func migrated(t *testing.T, text string) string {
	t.Helper()
	if !strings.Contains(text, ": ") {
		var env []string
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			env = append(env, fmt.Sprintf("{name: %s, value: %q}", name, value))
		}
		text = "kind: Pod\nspec: {containers: [{env: [" + strings.Join(env, ", ") + "]}]}\n"
	}
	out, err := Convert([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Every setting that aws-node-termination-handler has is in the tables, and no other.
func TestEverySettingIsKnown(t *testing.T) {
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
	rows, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range rows {
		if s.Variable != "" {
			ours = append(ours, "variable "+s.Variable)
		}
		if s.Value != "" {
			ours = append(ours, "value "+s.Value)
		}
	}
	slices.Sort(theirs)
	slices.Sort(ours)
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("settings (-theirs +in our tables):\n%s", diff)
	}
}

// A row says what there is here, or why there is nothing, and is taken over in one way.
func TestRows(t *testing.T) {
	rows, err := Rows()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range rows {
		name := s.Variable + " " + s.Value
		if s.Here == "" && s.Remark == "" {
			t.Errorf("%s: nothing is said of it", name)
		}
		if s.Convert != "" && converters[s.Convert] == nil {
			t.Errorf("%s: there is no converter %s", name, s.Convert)
		}
		if value, is := strings.CutPrefix(s.To, "flags."); is {
			flag := "--" + strings.ToLower(capital.ReplaceAllString(value, "-$0"))
			if !strings.Contains(s.Here, flag) {
				t.Errorf("%s: taken over to %s, and documented as %s", name, flag, s.Here)
			}
			if own := strings.ReplaceAll(strings.ToUpper(flag[2:]), "-", "_"); s.Convert == "" && own != s.Variable {
				t.Errorf("%s: the variable is SPOT_HANDLER_%s here", name, own)
			}
		}
		if strings.Contains(s.Here+s.Remark, "|") {
			t.Errorf("%s: a cell of a table in Markdown cannot hold |", name)
		}
	}
}

var capital = regexp.MustCompile(`[A-Z]`)

// Each input in testdata gives the values beside it.
func TestConvert(t *testing.T) {
	inputs, err := filepath.Glob(filepath.Join("testdata", "*.in"))
	if err != nil || len(inputs) == 0 {
		t.Fatal(inputs, err)
	}
	for _, input := range inputs {
		name := strings.TrimSuffix(input, "in") + "values"
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Convert(text)
			if err != nil {
				t.Fatal(err)
			}
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
			var values map[string]any
			if err := yaml.Unmarshal([]byte(got), &values); err != nil || values["mode"] == nil {
				t.Errorf("values %v, %v", values, err)
			}
		})
	}
}

// The defaults of the two are not the same: what nobody has set has to be said, too.
func TestConvertDefaults(t *testing.T) {
	imds := migrated(t, "NODE_NAME=a\n")
	if !strings.HasPrefix(imds, "flags:\n  rebalance: ignore\n  watch:\n  - rebalance\n  - spot\n  - scheduled-events\n") {
		t.Errorf("rebalance recommendations are not ignored:\n%s", imds)
	}
	if strings.Contains(imds, "TAG") || strings.Contains(imds, "enableASG") {
		t.Errorf("what has no effect is named:\n%s", imds)
	}
	off := migrated(t, "ENABLE_SPOT_INTERRUPTION_DRAINING=false\nENABLE_SCHEDULED_EVENT_DRAINING=false\n")
	if want := "watch:\n  - rebalance\nmode:"; !strings.Contains(off, want) {
		t.Errorf("no %q in:\n%s", want, off)
	}
	for _, mode := range []string{"NODE_NAME=a\n", "ENABLE_SQS_TERMINATION_DRAINING=true\n"} {
		if cordon := migrated(t, mode+"CORDON_ONLY=true\n"); !strings.Contains(cordon, "cordonOnly: true") || strings.Contains(cordon, "drain:") {
			t.Errorf("not cordoned only:\n%s", cordon)
		}
	}
	chart := migrated(t, "logLevel: debug\n")
	if !strings.Contains(chart, "mode: imds") || strings.Contains(chart, "watch:") {
		t.Errorf("not the chart's own default of lifecycle hooks, which is on:\n%s", chart)
	}
	queue := migrated(t, "ENABLE_SQS_TERMINATION_DRAINING=true\nHEARTBEAT_INTERVAL=60\n")
	for _, want := range []string{"mode: queue", "rebalance: replace", "heartbeatUntil: 172800s", "CHECK_TAG_BEFORE_DRAINING=true (its default)"} {
		if !strings.Contains(queue, want) {
			t.Errorf("no %q in:\n%s", want, queue)
		}
	}
}

// Heartbeats are off where their interval is 0.
func TestConvertHeartbeats(t *testing.T) {
	for interval, on := range map[string]bool{"0": false, "1": true} {
		values := migrated(t, "ENABLE_SQS_TERMINATION_DRAINING=true\nHEARTBEAT_INTERVAL="+interval+"\n")
		if strings.Contains(values, "heartbeatUntil") != on {
			t.Errorf("an interval of %s:\n%s", interval, values)
		}
	}
}

// Tags of instances are not checked: that is said if the settings ask for a check, and its tag goes nowhere.
func TestConvertTags(t *testing.T) {
	for settings, said := range map[string]string{
		"ENABLE_SQS_TERMINATION_DRAINING=true\n":                                     "CHECK_TAG_BEFORE_DRAINING=true (its default): ",
		"ENABLE_SQS_TERMINATION_DRAINING=true\nMANAGED_TAG=mine\n":                   "CHECK_TAG_BEFORE_DRAINING=true (its default): ",
		"ENABLE_SQS_TERMINATION_DRAINING=true\nCHECK_ASG_TAG_BEFORE_DRAINING=true\n": "CHECK_TAG_BEFORE_DRAINING=true: ",
		"enableSqsTerminationDraining: true\nmanagedTag: mine\n":                     "checkTagBeforeDraining=true (its default): ",
		"ENABLE_SQS_TERMINATION_DRAINING=true\nCHECK_TAG_BEFORE_DRAINING=false\n":    "",
		"CHECK_TAG_BEFORE_DRAINING=true\nMANAGED_TAG=mine\n":                         "", // in imds mode nothing is checked there
	} {
		values := migrated(t, settings)
		if said == "" && strings.Contains(values, "--managed-nodes") || !strings.Contains(values, said) {
			t.Errorf("%q: want the remark %q in:\n%s", settings, said, values)
		}
		if strings.Contains(values, "mine") {
			t.Errorf("%q: the tag is taken over:\n%s", settings, values)
		}
	}
}

// A variable from a ConfigMap stays one from it; one from the downward API is not needed.
func TestConvertReferences(t *testing.T) {
	values := migrated(t, "kind: Pod\nspec: {containers: [{env: [{name: DRY_RUN, valueFrom: {configMapKeyRef: {name: theirs, key: dry}}}, "+
		"{name: LOG_LEVEL, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}]}\n")
	if !strings.Contains(values, "name: SPOT_HANDLER_DRY_RUN") || !strings.Contains(values, "key: dry") || strings.Contains(values, "fieldRef") {
		t.Errorf("got:\n%s", values)
	}
}

func TestConvertRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		says string
	}{
		"nothing": {"", "no settings"},
		"prose":   {"this is: no: YAML", "want YAML"},
		"scalar":  {"hello", "no settings"},
		"others":  {"kind: Pod\nspec: {containers: [{env: [{name: HOME, value: /root}]}]}\n", "no settings"},
		"two objects": {"kind: DaemonSet\nspec: {env: [{name: ENABLE_SQS_TERMINATION_DRAINING, value: \"false\"}, {name: WORKERS, value: \"1\"}]}\n---\n" +
			"kind: Deployment\nspec: {env: [{name: ENABLE_SQS_TERMINATION_DRAINING, value: \"true\"}, {name: WORKERS, value: \"1\"}]}\n",
			"more than one value of ENABLE_SQS_TERMINATION_DRAINING: "},
		"two of both": {"logLevel: debug\n---\nkind: Pod\nspec: {containers: [{env: [{name: DRY_RUN, value: \"true\"}]}]}\n", "one of them"},
	} {
		if _, err := Convert([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: error %v, want one that says %q", name, err, tt.says)
		}
	}
}

// Anything may be piped in.
func FuzzConvert(f *testing.F) {
	f.Add("kind: List\nitems: [{spec: {env: [{name: 1}, {name: QUEUE_URL, valueFrom: 3}]}}]")
	f.Add("image: 3\nserviceAccount: []\nupdateStrategy: x\nprometheusServerPort: {}\nenablePrometheusServer: true")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = Convert([]byte(text))
	})
}
