package migrate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// valueFrom says where the cluster keeps a variable's value.
type valueFrom map[string]any

// settingLike matches variables that look like settings: a pod has others, too.
var settingLike = regexp.MustCompile(`^(ENABLE|WEBHOOK|TAINT|CHECK|MANAGED|PROBES|PROMETHEUS|HEARTBEAT|SQS|USE|KUBERNETES_EVENTS|LOG|DELETE)_`)

// read finds out which of the two forms the text has, and what it gives for each setting.
func (m *migration) read(text string, rows []*setting) error {
	for _, s := range rows {
		m.settings[s.Variable], m.settings[s.Value] = s, s
	}
	delete(m.settings, "")
	if err := m.readYAML(text); err != nil {
		return err
	}
	for _, s := range rows {
		s.name = cmp.Or(s.Variable, s.Value)
		if m.chart {
			s.name, s.Default = cmp.Or(s.Value, s.Variable), cmp.Or(s.ChartDefault, s.Default)
		} else if s.given == nil && s.Older != "" {
			s.given = m.settings[s.Older].given
		}
		s.text = asText(s.given)
	}
	if len(m.losses) == 0 && !slices.ContainsFunc(rows, func(s *setting) bool { return s.given != nil }) {
		return errors.New("no settings found: want a DaemonSet, Deployment or Pod, or values of the chart")
	}
	slices.Sort(m.losses)
	return nil
}

// give notes what is given for a setting, or that there is no such setting. Two objects can give
// different values, such as a DaemonSet for one mode and a Deployment for the other.
func (m *migration) give(name string, value any) error {
	switch s := m.settings[name]; {
	case s == nil && (m.chart || settingLike.MatchString(name)):
		m.lose(name, "is not a setting of aws-node-termination-handler 1.25")
	case s == nil:
	case s.given != nil && !reflect.DeepEqual(s.given, value):
		return fmt.Errorf("more than one value of %s: give one object at a time", name)
	default:
		s.given = value
	}
	return nil
}

// asText is what was given as text, JSON of a map or a list; empty if that is nothing, or not known.
func asText(given any) string {
	switch given.(type) {
	case nil, valueFrom:
		return ""
	case map[string]any, []any:
		text, err := json.Marshal(given)
		if err != nil || len(text) == len("{}") {
			return ""
		}
		return string(text)
	}
	return fmt.Sprint(given)
}

// readYAML reads objects, or values of the chart.
func (m *migration) readYAML(text string) (err error) {
	objects := false
	for document := range strings.SplitSeq("\n"+text, "\n---") {
		var content any
		if err := yaml.Unmarshal([]byte(document), &content); err != nil {
			return fmt.Errorf("want YAML or JSON: %w", err)
		}
		if values, is := content.(map[string]any); is && values["kind"] == nil {
			m.chart = true
			err = errors.Join(err, m.readValues("", values))
		} else if is {
			objects = true
			err = errors.Join(err, m.readEnv(values))
		}
	}
	if m.chart && objects {
		err = errors.New("found both an object and values of the chart: give one of them")
	}
	return err
}

// readEnv reads the variables of every container in an object or a list of objects: whatever has a
// name and a value counts as a variable.
func (m *migration) readEnv(object any) (err error) {
	switch content := object.(type) {
	case []any:
		for _, item := range content {
			err = errors.Join(err, m.readEnv(item))
		}
	case map[string]any:
		name, _ := content["name"].(string)
		if from, is := content["valueFrom"].(map[string]any); is {
			return m.give(name, valueFrom(from))
		}
		if value := content["value"]; name != "" && value != nil {
			return m.give(name, fmt.Sprint(value))
		}
		for _, field := range content {
			err = errors.Join(err, m.readEnv(field))
		}
	}
	return err
}

// readValues reads values by their path, as far down as the chart's settings go.
func (m *migration) readValues(prefix string, values map[string]any) (err error) {
	for name, value := range values {
		path := prefix + name
		nested, isMap := value.(map[string]any)
		switch {
		case value == nil: // such as helm's first line
		case isMap && m.settings[path] == nil:
			err = errors.Join(err, m.readValues(path+".", nested))
		default:
			err = errors.Join(err, m.give(path, value))
		}
	}
	return err
}
