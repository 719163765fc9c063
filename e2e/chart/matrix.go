package chart

import (
	_ "embed"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// QueueURL is the queue of rendered charts.
const QueueURL = "https://sqs.eu-west-1.amazonaws.com/111122223333/spot-handler"

// PlaceholderNamespace is that of placeholder pods.
const PlaceholderNamespace = "spot-handler-placeholders"

// Modes of the chart.
var Modes = []string{"imds", "queue", "both"}

// Values are the least that a mode needs, with the changes, by their paths, such as
// imds.port.
func Values(mode string, changes map[string]any) map[string]any {
	values := map[string]any{}
	set(values, "mode", mode)
	set(values, "image.repository", "registry.example.com/spot-handler")
	if mode != "imds" {
		set(values, "flags.queueUrl", QueueURL)
	}
	for _, path := range slices.Sorted(maps.Keys(changes)) {
		set(values, path, changes[path])
	}
	return values
}

func set(values map[string]any, path string, value any) {
	names := strings.Split(path, ".")
	for _, name := range names[:len(names)-1] {
		inner, ok := values[name].(map[string]any)
		if !ok {
			inner = map[string]any{}
			values[name] = inner
		}
		values = inner
	}
	values[names[len(names)-1]] = value
}

//go:embed matrix.yaml
var matrix []byte

// changes are sets of values, by their paths.
var changes = func() (sets map[string]map[string]any) {
	if err := yaml.UnmarshalStrict(matrix, &sets); err != nil {
		panic(err) // the file is part of the program
	}
	return sets
}()

// Case is one of the Matrix.
type Case struct {
	Name, Mode string
	Release    Release
}

// Matrix is every mode with every change that is worth a look. The tests of this package
// render it, and the stories have a real API server judge the outcome.
func Matrix() []Case {
	var cases []Case
	for _, mode := range Modes {
		for _, name := range slices.Sorted(maps.Keys(changes)) {
			cases = append(cases, Case{Name: mode + ", " + name, Mode: mode, Release: Release{Values: Values(mode, changes[name])}})
		}
	}
	return cases
}
