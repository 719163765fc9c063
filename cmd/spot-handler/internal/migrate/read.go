package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// given is what migrate was given.
type given struct {
	chart     bool              // values of a chart, not variables
	variables map[string]string // by name
	froms     map[string]any    // variables whose value is in the cluster
	values    map[string]any    // by path, such as image.tag; maps that are values are whole
	disputed  []string          // variables of which two objects say different things
}

// get is the value of a setting as text; empty if it was not given.
func (g given) get(s setting) string {
	if !g.chart {
		return g.variables[s.variable]
	}
	switch value := g.raw(s).(type) {
	case nil:
		return ""
	case string:
		return value
	case map[string]any, []any:
		if same(value, s.fallback) {
			return s.fallback
		}
		text, err := json.Marshal(value)
		if err != nil || string(text) == "{}" || string(text) == "[]" {
			return ""
		}
		return string(text)
	default:
		return fmt.Sprint(value)
	}
}

// raw is the value of a setting in the chart's values.
func (g given) raw(s setting) any {
	if s.value == "" {
		return nil
	}
	return g.values[s.value]
}

// same reports whether a value is what the YAML says.
func same(value any, text string) bool {
	var other any
	return text != "" && yaml.Unmarshal([]byte(text), &other) == nil && reflect.DeepEqual(value, other)
}

// nameIn is what a setting is called where it was given.
func (s setting) nameIn(g given) string {
	if g.chart && s.value != "" || s.variable == "" {
		return s.value
	}
	return s.variable
}

// unknown are the names in what was given that are in no table. Of variables that is
// only told of those which look like a setting: a pod has others, too.
func (g given) unknown() []string {
	var names []string
	for name := range g.variables {
		if !slices.ContainsFunc(settings, func(s setting) bool { return s.variable == name }) && settingLike.MatchString(name) {
			names = append(names, name)
		}
	}
	for path := range g.values {
		if !slices.ContainsFunc(slices.Concat(settings, chartSettings), func(s setting) bool { return s.value == path }) {
			names = append(names, path)
		}
	}
	slices.Sort(names)
	return names
}

var settingLike = regexp.MustCompile(`^(ENABLE|WEBHOOK|TAINT|CHECK|MANAGED|PROBES|PROMETHEUS|HEARTBEAT|SQS|USE|KUBERNETES_EVENTS|LOG|DELETE)_`)

// assignment is a line of variables, as a shell, docker or systemd take it.
var assignment = regexp.MustCompile(`^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)

// readGiven finds out which of the three forms the text has, and reads it.
func readGiven(text []byte) (given, error) {
	g := given{variables: map[string]string{}, froms: map[string]any{}, values: map[string]any{}}
	if lines, ok := readAssignments(string(text)); ok {
		g.variables = lines
		return g, nil
	}
	var documents []any
	for document := range strings.SplitSeq("\n"+string(text), "\n---") {
		var content any
		if err := yaml.Unmarshal([]byte(document), &content); err != nil {
			return given{}, fmt.Errorf("neither lines NAME=value nor YAML: %w", err)
		}
		if content != nil {
			documents = append(documents, content)
		}
	}
	for _, document := range documents {
		switch content := document.(type) {
		case []any:
			g.readEnv(content)
		case map[string]any:
			if content["kind"] != nil || content["spec"] != nil || content["env"] != nil {
				g.readObject(content)
			} else {
				g.chart = true
				g.flatten("", content)
			}
		}
	}
	if len(g.values) == 0 && len(g.variables) == 0 && len(g.froms) == 0 {
		return given{}, errors.New("no settings in it: want lines NAME=value, a DaemonSet, Deployment or Pod, or values of the chart")
	}
	if len(g.disputed) > 0 { // such as a DaemonSet for one mode and a Deployment for the other
		slices.Sort(g.disputed)
		return given{}, fmt.Errorf("more than one value of %s: give one object at a time", strings.Join(slices.Compact(g.disputed), ", "))
	}
	if g.chart && len(g.variables) > 0 {
		return given{}, errors.New("both an object and values of the chart in it: give one of them")
	}
	return g, nil
}

// readAssignments reads lines NAME=value. It reports false if there is any other line.
func readAssignments(text string) (map[string]string, bool) {
	found := map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		parts := assignment.FindStringSubmatch(line)
		if parts == nil {
			return nil, false
		}
		value := parts[2]
		if n := len(value); n >= 2 && (value[0] == '\'' || value[0] == '"') && value[n-1] == value[0] {
			if unquoted := value[1 : n-1]; value[0] == '\'' {
				value = unquoted
			} else {
				value = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(unquoted)
			}
		}
		found[parts[1]] = value
	}
	return found, len(found) > 0
}

// readObject takes the variables of every container in a Kubernetes object or a list of
// them: env is found wherever it is.
func (g *given) readObject(object any) {
	switch content := object.(type) {
	case []any:
		for _, item := range content {
			g.readObject(item)
		}
	case map[string]any:
		for name, field := range content {
			if list, ok := field.([]any); ok && name == "env" {
				g.readEnv(list)
			} else {
				g.readObject(field)
			}
		}
	}
}

func (g *given) readEnv(list []any) {
	for _, item := range list {
		variable, _ := item.(map[string]any)
		name, _ := variable["name"].(string)
		if name == "" {
			continue
		}
		if from := variable["valueFrom"]; from != nil {
			g.froms[name] = from
		} else if value := variable["value"]; value != nil {
			text := fmt.Sprint(value)
			if other, has := g.variables[name]; has && other != text && slices.ContainsFunc(settings, func(s setting) bool { return s.variable == name }) {
				g.disputed = append(g.disputed, name)
			}
			g.variables[name] = text
		}
	}
}

// flatten lists values by path, as far down as the chart's settings go.
func (g *given) flatten(prefix string, values map[string]any) {
	for name, value := range values {
		path := prefix + name
		if strings.HasSuffix(name, "-SUPPLIED VALUES") || name == "COMPUTED VALUES" { // helm's first line
			continue
		}
		nested, isMap := value.(map[string]any)
		if isMap && slices.ContainsFunc(chartSettings, func(s setting) bool { return strings.HasPrefix(s.value, path+".") }) {
			g.flatten(path+".", nested)
		} else if value != nil {
			g.values[path] = value
		}
	}
}
