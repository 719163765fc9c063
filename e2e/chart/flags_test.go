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
	"sigs.k8s.io/yaml"

	"spot-handler/e2e/daemon"
)

// sections of the values hold flags: those of all components, and those of one.
var sections = map[string][]string{
	"imds":  {"flags", "imds.flags"},
	"drain": {"flags", "drain.flags"},
	"queue": {"flags", "queue.flags"},
}

// Every flag that a mode has is a value, in the section of its mode, and the schema knows
// it; no value is without a flag.
func TestEveryFlagIsAValue(t *testing.T) {
	values, schema := readValues(t), readSchema(t)
	for mode, in := range sections {
		var others [][]string
		for other := range sections {
			others = append(others, help(t, other))
		}
		var here []string
		for _, section := range in {
			named, known := object(t, values, section), properties(t, schema, section)
			for name := range named {
				here = append(here, name)
				if _, ok := known[name]; !ok {
					t.Errorf("value %s.%s is not in values.schema.json", section, name)
				}
			}
			for name := range known {
				if _, ok := named[name]; !ok {
					t.Errorf("%s.%s of values.schema.json is not in values.yaml", section, name)
				}
			}
		}
		flags := help(t, mode)
		for _, flag := range flags {
			section := mode + ".flags"
			if !slices.ContainsFunc(others, func(other []string) bool { return !slices.Contains(other, flag) }) {
				section = "flags"
			}
			if _, ok := object(t, values, section)[camelCase(flag)]; !ok {
				t.Errorf("the chart does not know --%s of `spot-handler %s`: add %s.%s to values.yaml and to values.schema.json", flag, mode, section, camelCase(flag))
			}
		}
		for _, name := range here {
			if !slices.ContainsFunc(flags, func(flag string) bool { return camelCase(flag) == name }) {
				t.Errorf("value %s of %v is no flag of `spot-handler %s`", name, in, mode)
			}
		}
	}
}

// A value becomes the flag that it is named after, in the pods of its component only.
func TestValuesBecomeFlags(t *testing.T) {
	schema := readSchema(t)
	for mode, sections := range sections {
		values := Values(map[string]string{"imds": "imds", "drain": "imds", "queue": "queue"}[mode], nil)
		want := map[string]string{}
		for _, section := range sections {
			for name, property := range properties(t, schema, section) {
				if name == "nodeName" || mode == "imds" && strings.HasPrefix(name, "webhook") {
					continue // refused: all pods would be one node; not told: the DaemonSet tells nobody
				}
				value, args := sample(t, schema, property)
				set(values, section+"."+name, value)
				want[name] = args
			}
		}
		set(values, "queue.flags.queueUrl", QueueURL)
		set(values, "queue.replicas", 1) // as leaderElect is false
		set(values, "drain.replicas", 1)
		objects, err := helms(t)[1].Render(t.Context(), Release{Values: values})
		if err != nil {
			t.Fatal(err)
		}
		args := containerArgs(t, workload(t, objects, mode))
		for _, flag := range help(t, mode) {
			value, ok := want[camelCase(flag)]
			if flag == "queue-url" {
				value = QueueURL
			}
			if arg := "--" + flag + "=" + value; ok && !slices.Contains(args, arg) {
				t.Errorf("%s: no argument %q in %q", mode, arg, args)
			}
			delete(want, camelCase(flag))
		}
		for name := range want {
			t.Errorf("%s: value %s has become no flag", mode, name)
		}
	}
}

// What the schema lists is what the program takes, no more and no less.
func TestChoicesAreTheProgramsOwn(t *testing.T) {
	schema := readSchema(t)
	for mode, sections := range sections {
		for _, section := range sections {
			for name, property := range properties(t, schema, section) {
				choices, ok := property["enum"].([]any)
				if !ok {
					continue
				}
				flag := flagOf(t, mode, name)
				said := complaint(t, mode, flag)
				_, list, ok := strings.Cut(said, "want one of ")
				if !ok {
					t.Errorf("%s: --%s=nonsense: %q tells no choices, and the schema has %v", mode, flag, said, choices)
					continue
				}
				var got, want []string
				for _, c := range choices {
					if c != "" {
						got = append(got, fmt.Sprint(c))
					}
				}
				want = strings.Split(list, ", ")
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("%s.%s of values.schema.json allows %v, --%s allows %v", section, name, got, flag, want)
				}
			}
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
		case "number":
			return 5000000, "5000000" // not 5e+06
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
	if example, ok := property["examples"].([]any); ok {
		return example[0], fmt.Sprint(example[0])
	}
	return "127.0.0.1:1234", "127.0.0.1:1234"
}

func readValues(t *testing.T) map[string]any {
	t.Helper()
	return readFile(t, "values.yaml", func(b []byte, v any) error { return yaml.UnmarshalStrict(b, v) })
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
