package chart

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"spot-handler/e2e/daemon"
)

// modes of the program that the chart runs, each with a mode of the chart that does.
var modes = map[string]string{"imds": "imds", "drain": "imds", "queue": "queue"}

// ofTheChart are the flags that no value sets: the chart knows them itself, or makes them of other
// values.
var ofTheChart = []string{
	"node-name", "drain", "http-addr", "kubeconfig", "webhook-url-file", "webhook-headers-file", "webhook-template-file",
}

// flagValues are the flags that the schema knows, by their names there.
func flagValues(t *testing.T) map[string]map[string]any {
	t.Helper()
	known := map[string]map[string]any{}
	for name, property := range properties(t, readSchema(t), "flags") {
		if property["description"] == nil { // of an older version
			known[name] = property
		}
	}
	return known
}

// Every flag that a mode has is known to the schema, unless the chart sets it; and the schema knows
// no other.
func TestEveryFlagIsAValue(t *testing.T) {
	known, all := flagValues(t), []string{}
	for mode := range modes {
		for _, flag := range help(t, mode) {
			all = append(all, camelCase(flag))
			if _, ok := known[camelCase(flag)]; ok == slices.Contains(ofTheChart, flag) {
				t.Errorf("flags.%s in values.schema.json: %v; want every flag of `spot-handler %s` but %v", camelCase(flag), ok, mode, ofTheChart)
			}
		}
	}
	for name := range known {
		if !slices.Contains(all, name) {
			t.Errorf("flags.%s of values.schema.json is no flag", name)
		}
	}
}

// A value becomes the flag that it is named after, in the pods of the modes that have it.
func TestValuesBecomeFlags(t *testing.T) {
	schema, known := readSchema(t), flagValues(t)
	for mode, ofChart := range modes {
		values, want := Values(ofChart, nil), map[string]string{}
		for name, property := range known {
			value, arg := sample(t, schema, property)
			if name == "queueUrl" {
				value, arg = QueueURL, QueueURL
			}
			set(values, "flags."+name, value)
			want[name] = arg
		}
		objects, err := helms(t)[1].Render(t.Context(), Release{Values: values})
		if err != nil {
			t.Fatal(err)
		}
		args, flags := containerArgs(t, workload(t, objects, mode)), help(t, mode)
		for _, flag := range flags {
			value, ok := want[camelCase(flag)]
			if mode == "imds" && flag == "webhook-proxy" {
				continue // the Deployment notifies people, the DaemonSet nobody
			}
			if arg := "--" + flag + "=" + value; ok && !slices.Contains(args, arg) {
				t.Errorf("%s: no argument %q in %q", mode, arg, args)
			}
		}
		for _, arg := range args[1:] {
			name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			if !slices.Contains(flags, name) {
				t.Errorf("%s: argument %q is no flag of that mode", mode, arg)
			}
		}
	}
}

// What the schema lists is what the program takes, no more and no less.
func TestChoicesAreTheProgramsOwn(t *testing.T) {
	for name, property := range flagValues(t) {
		choices, ok := property["enum"].([]any)
		if !ok {
			continue
		}
		flag := flagOf(t, "queue", name)
		said := complaint(t, "queue", flag)
		_, list, ok := strings.Cut(said, "want one of ")
		if !ok {
			t.Errorf("--%s=nonsense: %q names no choices, and the schema has %v", flag, said, choices)
			continue
		}
		var got []string
		for _, c := range choices {
			if c != "" {
				got = append(got, fmt.Sprint(c))
			}
		}
		want := strings.Split(list, ", ")
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("flags.%s of values.schema.json allows %v, --%s allows %v", name, got, flag, want)
		}
	}
}

// help lists the flags of a mode, as --help prints them.
func help(t *testing.T, mode string) []string {
	t.Helper()
	out, err := exec.Command(build(t), mode, "--help").Output()
	if err != nil {
		t.Fatalf("spot-handler %s --help: %v", mode, err)
	}
	var flags []string
	for _, found := range regexp.MustCompile(`(?m)^ +--([a-z0-9-]+)`).FindAllStringSubmatch(string(out), -1) {
		flags = append(flags, found[1])
	}
	if len(flags) < 5 {
		t.Fatalf("spot-handler %s --help lists %v only", mode, flags)
	}
	return flags
}

// complaint is what the program says of a value that it cannot take.
func complaint(t *testing.T, mode, flag string) string {
	t.Helper()
	cmd := exec.Command(build(t), mode, "--"+flag+"=nonsense", "--kubeconfig="+os.DevNull)
	cmd.Env = []string{}
	out, _ := cmd.CombinedOutput() // it ends with code 2
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "--"+flag+" ") {
			return strings.TrimSpace(line)
		}
	}
	return strings.TrimSpace(string(out))
}

func build(t *testing.T) string {
	t.Helper()
	path, err := daemon.Build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func flagOf(t *testing.T, mode, name string) string {
	t.Helper()
	for _, flag := range help(t, mode) {
		if camelCase(flag) == name {
			return flag
		}
	}
	t.Fatalf("value %s is no flag of %s", name, mode)
	return ""
}

func camelCase(flag string) string {
	words := strings.Split(flag, "-")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return strings.Join(words, "")
}

// sample is a value that the schema allows, and how a flag has it.
func sample(t *testing.T, schema, property map[string]any) (value any, arg string) {
	t.Helper()
	if ref, ok := property["$ref"].(string); ok {
		switch strings.TrimPrefix(ref, "#/definitions/") {
		case "duration":
			return "7s", "7s"
		case "yesNo":
			return false, "false"
		case "strings":
			return map[string]any{"from": "to"}, "from=to"
		case "networks":
			return []any{"10.0.0.0/8"}, "10.0.0.0/8"
		case "list":
			return []any{"one", "two"}, "two"
		case "name":
			return "name-1", "name-1"
		}
		t.Fatalf("no sample of %s", ref)
	}
	if choices, ok := property["enum"].([]any); ok {
		last := choices[len(choices)-1]
		return last, fmt.Sprint(last)
	}
	if items, ok := property["items"].(map[string]any); ok {
		last := items["enum"].([]any)[0]
		return []any{last}, fmt.Sprint(last)
	}
	if example, ok := property["examples"].([]any); ok {
		return example[0], fmt.Sprint(example[0])
	}
	return "127.0.0.1:1234", "127.0.0.1:1234"
}

func readSchema(t *testing.T) map[string]any {
	t.Helper()
	return readFile(t, "values.schema.json", json.Unmarshal)
}

func readFile(t *testing.T, name string, unmarshal func([]byte, any) error) map[string]any {
	t.Helper()
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	var content map[string]any
	if err := unmarshal(text, &content); err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return content
}

// object is the map at a path of values, such as imds.flags.
func object(t *testing.T, values map[string]any, path string) map[string]any {
	t.Helper()
	found, ok, err := unstructured.NestedMap(values, strings.Split(path, ".")...)
	if err != nil || !ok {
		t.Fatalf("values.yaml has no %s: %v", path, err)
	}
	return found
}

// properties are those that the schema has for the values at a path.
func properties(t *testing.T, schema map[string]any, path string) map[string]map[string]any {
	t.Helper()
	for name := range strings.SplitSeq(path, ".") {
		next, ok, err := unstructured.NestedMap(schema, "properties", name)
		if err != nil || !ok {
			t.Fatalf("the schema has no %s: %v", path, err)
		}
		schema = next
	}
	if schema["additionalProperties"] != false {
		t.Errorf("the schema lets any value into %s", path)
	}
	found := map[string]map[string]any{}
	for name, property := range object(t, schema, "properties") {
		found[name] = property.(map[string]any)
	}
	return found
}
