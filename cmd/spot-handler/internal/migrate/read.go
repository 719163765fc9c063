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
	chart   bool           // values of a chart, not variables
	values  map[string]any // by variable, or by path in the chart, such as image.tag; maps that are values are whole
	unknown []string       // what is in no table
}

// valueFrom is the value of a variable that is in the cluster.
type valueFrom struct{ source any }

// name is what a setting is called where it was given.
func (g given) name(s setting) string {
	if g.chart && s.Value != "" || s.Variable == "" {
		return s.Value
	}
	return s.Variable
}

// raw is the value of a setting; nil if it was not given.
func (g given) raw(s setting) any {
	if g.chart {
		return g.values[s.Value]
	}
	return g.values[s.Variable]
}

// get is the same as text; empty if it was not given.
func (g given) get(s setting) string {
	switch value := g.raw(s).(type) {
	case nil, valueFrom:
		return ""
	case map[string]any, []any:
		var byDefault any
		if s.Default != "" && yaml.Unmarshal([]byte(s.Default), &byDefault) == nil && reflect.DeepEqual(value, byDefault) {
			return s.Default
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

// settingLike are variables that look like a setting: a pod has others, too.
var settingLike = regexp.MustCompile(`^(ENABLE|WEBHOOK|TAINT|CHECK|MANAGED|PROBES|PROMETHEUS|HEARTBEAT|SQS|USE|KUBERNETES_EVENTS|LOG|DELETE)_`)

// assignment is a line of variables, as a shell, docker or systemd take it.
var assignment = regexp.MustCompile(`^(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)

// read finds out which of the three forms the text has, and reads it.
func read(text []byte, table []setting) (given, error) {
	variables, isLines := readAssignments(string(text))
	g := given{values: variables}
	if !isLines {
		if err := g.readYAML(string(text), table); err != nil {
			return g, err
		}
	}
	if len(g.values) == 0 {
		return g, errors.New("no settings in it: want lines NAME=value, a DaemonSet, Deployment or Pod, or values of the chart")
	}
	for _, s := range table {
		if older, is := g.values[s.Older].(string); is && g.values[s.Variable] == nil {
			g.values[s.Variable] = older
		}
	}
	for name := range g.values {
		if !slices.ContainsFunc(table, func(s setting) bool { return g.name(s) == name }) && (g.chart || settingLike.MatchString(name)) {
			g.unknown = append(g.unknown, name)
		}
	}
	slices.Sort(g.unknown)
	return g, nil
}

// readYAML reads objects, or values of the chart.
func (g *given) readYAML(text string, table []setting) error {
	var env []any // of containers
	for document := range strings.SplitSeq("\n"+text, "\n---") {
		var content any
		if err := yaml.Unmarshal([]byte(document), &content); err != nil {
			return fmt.Errorf("neither lines NAME=value nor YAML: %w", err)
		}
		values, _ := content.(map[string]any)
		if values["kind"] != nil {
			env = append(env, envOf(values)...)
		} else if values != nil {
			g.chart = true
			g.flatten("", values, table)
		}
	}
	if g.chart && len(env) > 0 {
		return errors.New("both an object and values of the chart in it: give one of them")
	}
	return g.readEnv(env, table)
}

// readAssignments reads lines NAME=value. It reports false if there is any other line.
func readAssignments(text string) (map[string]any, bool) {
	found := map[string]any{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		parts := assignment.FindStringSubmatch(line)
		if parts == nil {
			return map[string]any{}, false
		}
		value := parts[2]
		if n := len(value); n >= 2 && (value[0] == '\'' || value[0] == '"') && value[n-1] == value[0] {
			if value = value[1 : n-1]; parts[2][0] == '"' {
				value = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(value)
			}
		}
		found[parts[1]] = value
	}
	return found, len(found) > 0
}

// envOf are the variables of every container in a Kubernetes object or a list of them: env is found
// wherever it is.
func envOf(object any) (env []any) {
	switch content := object.(type) {
	case []any:
		for _, item := range content {
			env = append(env, envOf(item)...)
		}
	case map[string]any:
		for name, field := range content {
			if list, ok := field.([]any); ok && name == "env" {
				env = append(env, list...)
			} else {
				env = append(env, envOf(field)...)
			}
		}
	}
	return env
}

// readEnv reads variables of containers. A setting of which two objects say different things is an
// error, such as of a DaemonSet for one mode and a Deployment for the other.
func (g *given) readEnv(list []any, table []setting) error {
	for _, item := range list {
		variable, _ := item.(map[string]any)
		name, _ := variable["name"].(string)
		switch from, value := variable["valueFrom"], variable["value"]; {
		case name == "":
		case from != nil:
			g.values[name] = valueFrom{from}
		case value != nil:
			text := fmt.Sprint(value)
			if other, has := g.values[name].(string); has && other != text && slices.ContainsFunc(table, func(s setting) bool { return s.Variable == name }) {
				return fmt.Errorf("more than one value of %s: give one object at a time", name)
			}
			g.values[name] = text
		}
	}
	return nil
}

// flatten lists values by path, as far down as the chart's settings go.
func (g *given) flatten(prefix string, values map[string]any, table []setting) {
	for name, value := range values {
		path := prefix + name
		nested, isMap := value.(map[string]any)
		switch {
		case strings.HasSuffix(name, "-SUPPLIED VALUES") || name == "COMPUTED VALUES" || value == nil: // helm's first line
		case isMap && slices.ContainsFunc(table, func(s setting) bool { return strings.HasPrefix(s.Value, path+".") }):
			g.flatten(path+".", nested, table)
		default:
			g.values[path] = value
		}
	}
}
