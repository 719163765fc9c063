// Package migrate turns the settings of aws-node-termination-handler 1.25 into those of
// spot-handler, and says what has no counterpart and why. It talks to nothing, and what it
// prints can be used as it is: remarks are comments. What becomes of each setting is in
// settings.yaml; the rest is what interprets it.
package migrate

import (
	"cmp"
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"spot-handler/handler/interruption"
)

//go:embed settings.yaml
var settings []byte

// setting is a row of settings.yaml, which explains its fields, and what the input gives for it.
type setting struct {
	Variable, Older, Value, Default, ChartDefault string
	Here, Remark, Elsewhere                       string
	To, As, Mode, Convert, Harmless, ByDefault    string
	Always                                        bool

	name  string // where it was given, or would be
	given any    // nil: it was not
	text  string // the same as text; empty if it is not known here
}

// value is what was given, or the default.
func (s *setting) value() string { return cmp.Or(s.text, s.Default) }

// Rows are all settings, as the documentation lists them.
func Rows() (rows []*setting, err error) {
	err = yaml.UnmarshalStrict(settings, &rows)
	return rows, err
}

// The modes of spot-handler.
const (
	modeIMDS  = "imds"
	modeQueue = "queue"
)

// component is the block of our chart's values for the pods that take the mode's notices.
var component = map[string]string{modeIMDS: "imds", modeQueue: "controller"}

// Convert reads settings, in one of the forms that the command's help lists, and returns values for
// our chart, with all remarks as comments.
func Convert(text []byte) (string, error) {
	rows, err := Rows()
	if err != nil {
		return "", fmt.Errorf("read the table of settings: %w", err)
	}
	m := &migration{settings: map[string]*setting{}, mode: modeIMDS, values: map[string]any{}}
	if err := m.read(string(text), rows); err != nil {
		return "", err
	}
	if m.isOn("ENABLE_SQS_TERMINATION_DRAINING") {
		m.mode = modeQueue
	}
	for _, s := range rows {
		m.apply(s)
	}
	if webhook, has, _ := unstructured.NestedMap(m.values, "webhook"); has && webhook["secretName"] == nil {
		m.put("webhook.secretName", "spot-handler-webhook")
	}
	if len(m.env) > 0 {
		extra, _, _ := unstructured.NestedSlice(m.values, component[m.mode], "env")
		m.put("COMPONENT.env", append(m.env, extra...))
	}
	m.put("mode", m.mode)
	values, err := yaml.Marshal(m.values)
	return string(values) + section("Different:", m.minds) + section("No counterpart:", m.losses), err
}

// migration is one run of migrate: what was given, and what came of it.
type migration struct {
	settings map[string]*setting // by variable, and by the value of its chart
	chart    bool                // values of a chart were given, not variables
	mode     string

	values map[string]any // of our chart
	env    []any          // of a container: what others than us read, or what is in the cluster
	minds  []string       // what is different
	losses []string       // what there is not
}

func (m *migration) mind(name, text string) { m.minds = append(m.minds, name+": "+text) }
func (m *migration) lose(name, text string) { m.losses = append(m.losses, name+": "+text) }

// put sets what a setting goes to.
func (m *migration) put(to string, value any) {
	if name, isEnv := strings.CutPrefix(to, "env."); isEnv {
		m.env = append(m.env, map[string]any{"name": name, "value": fmt.Sprint(value)})
		return
	}
	if value == "true" || value == "false" {
		value = value == "true"
	}
	path := strings.Split(strings.Replace(to, "COMPONENT", component[m.mode], 1), ".")
	_ = unstructured.SetNestedField(m.values, value, path...) // no path in the table is below another
}

// apply translates a setting.
func (m *migration) apply(s *setting) {
	if from, ok := s.given.(valueFrom); ok {
		m.takeFrom(s, from)
		return
	}
	changed, here := s.text != "" && s.text != s.Default, s.Mode == "" || s.Mode == m.mode
	switch {
	case s.Convert != "":
		if changed || s.Always {
			converters[s.Convert](m, s)
		}
	case s.To == "":
		m.miss(s)
	case changed && here && s.As != "":
		m.put(s.To, s.As)
	case changed && here:
		m.put(s.To, s.given)
	case changed && s.Elsewhere != "":
		m.lose(s.name, s.Elsewhere)
	}
	if changed && here && s.To != "" && s.Remark != "" {
		m.mind(s.name, s.Remark)
	}
}

// miss says what is different, or not there at all, where it is asked for: by a value, or by its
// default.
func (m *migration) miss(s *setting) {
	asked := s.value()
	if s.Harmless == "*" || asked == cmp.Or(s.Harmless, s.Default) || asked == s.Default && s.ByDefault != m.mode {
		return // asked for nothing, or without effect in this mode
	}
	asked = interruption.Clip(asked)
	if s.text == "" {
		asked += " (its default)"
	}
	if s.Here != "" {
		m.mind(s.name+"="+asked, s.Remark)
	} else {
		m.lose(s.name+"="+asked, s.Remark)
	}
}

// takeFrom takes over a variable whose value is not known here.
func (m *migration) takeFrom(s *setting, from valueFrom) {
	secret, _ := from["secretKeyRef"].(map[string]any)
	name, isEnv := strings.CutPrefix(s.To, "env.")
	if strings.HasPrefix(s.To, "flags.") {
		name, isEnv = "SPOT_HANDLER_"+s.Variable, true // all these variables have the same name here
	}
	switch {
	case s.Variable == "WEBHOOK_URL" && secret["name"] != nil && secret["key"] != nil:
		m.put("webhook.secretName", secret["name"])
		m.put(s.To, secret["key"])
	case isEnv && from["fieldRef"] != nil: // the downward API: our manifests and our chart do the same where it is needed
	case isEnv:
		m.env = append(m.env, map[string]any{"name": name, "valueFrom": map[string]any(from)})
	default:
		m.lose(s.Variable, "its value is not in the file; "+s.Remark)
	}
}

// isOn reads a switch as aws-node-termination-handler does.
func (m *migration) isOn(variable string) bool {
	on, err := strconv.ParseBool(m.settings[variable].value())
	return err == nil && on
}

// converters convert the settings that name one.
var converters = map[string]func(m *migration, s *setting){
	// Two switches in one, of which the default is not ours. In queue mode it drains whatever they
	// say.
	"rebalance": func(m *migration, s *setting) {
		policy := interruption.RebalanceIgnore
		switch drains := m.mode == modeQueue || m.isOn("ENABLE_REBALANCE_DRAINING"); {
		case drains && !m.isOn("CORDON_ONLY"):
			policy = interruption.RebalanceReplace
			m.mind(s.name, s.Remark)
		case drains || m.isOn("ENABLE_REBALANCE_MONITORING"):
			policy = interruption.RebalanceCordon
		}
		m.put("flags.rebalance", string(policy))
	},
	// The switches of imds mode if one is off: here all are on. Rebalance recommendations are left to
	// --rebalance.
	"watch": func(m *migration, _ *setting) {
		on := []any{"rebalance"}
		for _, kind := range [][2]string{
			{"spot", "ENABLE_SPOT_INTERRUPTION_DRAINING"},
			{"lifecycle", "ENABLE_ASG_LIFECYCLE_DRAINING"},
			{"scheduled-events", "ENABLE_SCHEDULED_EVENT_DRAINING"},
		} {
			if m.isOn(kind[1]) {
				on = append(on, kind[0])
			}
		}
		if m.mode == modeIMDS && len(on) < 4 {
			m.put("flags.watch", on)
		}
	},
	// Heartbeats are on where nothing says for how long: there it is as long as AWS allows.
	"heartbeats": func(m *migration, s *setting) {
		interval, _ := strconv.Atoi(s.value())
		until, _ := strconv.Atoi(m.settings["HEARTBEAT_UNTIL"].value())
		if until <= 0 {
			until = 172800
		}
		if interval > 0 && m.mode == modeQueue {
			m.put("flags.heartbeatUntil", fmt.Sprintf("%ds", until))
		}
	},
	// The port of metrics where it serves them, else that of the probes.
	"httpPort": func(m *migration, s *setting) {
		if m.isOn("ENABLE_PROMETHEUS_SERVER") != (s.Variable == "PROMETHEUS_SERVER_PORT") {
			return
		}
		if port, err := strconv.ParseInt(s.value(), 10, 32); err == nil {
			m.put("COMPONENT.port", port)
		} else {
			m.lose(s.name, "is not a port")
		}
	},
	"logLevel":     func(m *migration, s *setting) { m.put(s.To, strings.ToLower(s.value())) },
	"webhookProxy": func(m *migration, s *setting) { m.put(s.To, strings.Replace(s.value(), "tcp://", "http://", 1)) },
	// The Secret's name; its key is fixed.
	"webhookSecret": func(m *migration, s *setting) {
		m.put(s.To, s.value())
		m.put("webhook.urlKey", "webhookurl")
	},
}

// section is a comment with a title, if there are lines.
func section(title string, lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	text := "\n# " + title + "\n"
	for _, line := range lines {
		text += "#   " + strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\n", " ") + "\n"
	}
	return text
}
