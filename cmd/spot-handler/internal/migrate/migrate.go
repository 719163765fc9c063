// Package migrate turns the settings of aws-node-termination-handler 1.25 into those of
// spot-handler, and says what has no counterpart and why. It talks to nothing, and what it
// prints can be used as it is: remarks are comments. What becomes of each setting is in
// settings.yaml; the rest is what interprets it.
package migrate

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/interruption"
)

//go:embed settings.yaml
var settings []byte

// setting is a row of settings.yaml, which says what its fields mean.
type setting struct {
	Variable, Older, Value, Default, ChartDefault string
	Here, Remark, Elsewhere                       string
	To, Mode, Convert, Harmless, ByDefault        string
	Always                                        bool
}

// Rows are all settings, as the documentation lists them.
func Rows() (rows []setting, err error) {
	err = yaml.UnmarshalStrict(settings, &rows)
	return rows, err
}

// The forms in which settings are printed.
const (
	outputFlags  = "flags"  // a command line
	outputValues = "values" // of our chart
)

// Outputs are the forms in which settings are printed: as a command line, or as values of our
// chart.
func Outputs() []string { return []string{outputFlags, outputValues} }

// The modes of spot-handler.
const (
	modeIMDS  = "imds"
	modeQueue = "queue"
)

// component is the block of our chart's values for the pods that take the mode's notices.
var component = map[string]string{modeIMDS: "imds", modeQueue: "controller"}

// Convert reads settings, in any of the forms that its command's help lists, and returns ours in
// the form of output. An empty output is values for values, and flags for all else.
func Convert(text []byte, output string) (string, error) {
	if output != "" && !slices.Contains(Outputs(), output) {
		return "", fmt.Errorf("--output: %q: want one of %s", output, strings.Join(Outputs(), ", "))
	}
	table, err := Rows()
	if err != nil {
		return "", fmt.Errorf("read the table of settings: %w", err)
	}
	given, err := read(text, table)
	if err != nil {
		return "", err
	}
	m := &migration{given: given, table: table, mode: modeIMDS, values: map[string]any{}}
	if m.isOn("ENABLE_SQS_TERMINATION_DRAINING") {
		m.mode = modeQueue
	}
	for _, s := range table {
		m.take(s)
	}
	if m.mode == modeQueue && m.given.values["QUEUE_URL"] == nil && m.lookup("QUEUE_URL") == "" {
		m.mind("QUEUE_URL", "not given: --queue-url has to be")
	}
	for _, name := range m.given.unknown {
		m.lose(name, "is no setting of aws-node-termination-handler 1.25")
	}
	if output == outputValues || output == "" && given.chart {
		return m.chartValues()
	}
	return m.commandLine()
}

// migration is one run of migrate: what was given, and what came of it.
type migration struct {
	given
	table []setting
	mode  string

	values map[string]any // of our chart, by path
	env    []any          // of a container: what others than us read, or what is in the cluster
	minds  []string       // what is different
	losses []string       // what there is not
}

func (m *migration) mind(name, text string) { m.minds = append(m.minds, name+": "+text) }
func (m *migration) lose(name, text string) { m.losses = append(m.losses, name+": "+text) }

// put sets what a setting goes to.
func (m *migration) put(to string, value any) {
	switch name, isEnv := strings.CutPrefix(to, "env."); {
	case isEnv:
		m.env = append(m.env, map[string]any{"name": name, "value": value})
	case value == "true" || value == "false":
		m.values[to] = value == "true"
	default:
		m.values[strings.Replace(to, "COMPONENT", component[m.mode], 1)] = value
	}
}

// fallback is what holds where the setting is not given.
func (m *migration) fallback(s setting) string {
	if m.chart {
		return cmp.Or(s.ChartDefault, s.Default)
	}
	return s.Default
}

// take takes a setting over.
func (m *migration) take(s setting) {
	if from, ok := m.given.values[s.Variable].(valueFrom); ok {
		m.takeFrom(s, from)
		return
	}
	name, value := m.name(s), m.get(s)
	isGiven := value != "" && value != m.fallback(s)
	isEnv := strings.HasPrefix(s.To, "env.")
	switch {
	case s.Convert != "":
		if isGiven || s.Always {
			converters[s.Convert](m, s, cmp.Or(value, m.fallback(s)))
		}
	case s.To == "":
		m.miss(s, name, value)
	case !isGiven:
	case s.Mode != "" && s.Mode != m.mode:
		if s.Elsewhere != "" {
			m.lose(name, s.Elsewhere)
		}
	case isEnv || strings.HasPrefix(s.To, "flags."):
		m.put(s.To, value)
	default:
		m.put(s.To, m.raw(s))
	}
	if isGiven && s.To != "" && !isEnv && s.Remark != "" && (s.Mode == "" || s.Mode == m.mode) {
		m.mind(name, s.Remark)
	}
}

// miss says what is different, or not there at all, where it is asked for: by a value, or by its
// default.
func (m *migration) miss(s setting, name, value string) {
	fallback := m.fallback(s)
	asked := cmp.Or(value, fallback)
	if s.Harmless == "*" || asked == cmp.Or(s.Harmless, fallback) || asked == fallback && s.ByDefault != m.mode {
		return // asked for nothing, or without effect in this mode
	}
	if asked = strings.Join(strings.Fields(asked), " "); len(asked) > 60 {
		asked = asked[:60] + "..."
	}
	if value == "" {
		asked += " (its default)"
	}
	if s.Here != "" {
		m.mind(name+"="+asked, s.Remark)
	} else {
		m.lose(name+"="+asked, s.Remark)
	}
}

// takeFrom takes over a variable whose value is not known here.
func (m *migration) takeFrom(s setting, from valueFrom) {
	source, _ := from.source.(map[string]any)
	secret, _ := source["secretKeyRef"].(map[string]any)
	env, isEnv := strings.CutPrefix(s.To, "env.")
	flag, isFlag := strings.CutPrefix(s.To, "flags.")
	switch {
	case s.Variable == "WEBHOOK_URL" && secret["name"] != nil && secret["key"] != nil:
		m.values["webhook.secretName"], m.values[s.To] = secret["name"], secret["key"]
	case isEnv && source["fieldRef"] != nil: // the downward API: our manifests and our chart do the same where it is needed
	case isEnv:
		m.env = append(m.env, map[string]any{"name": env, "valueFrom": from.source})
	case isFlag:
		name := "SPOT_HANDLER_" + strings.ToUpper(strings.ReplaceAll(kebab(flag), "-", "_"))
		m.env = append(m.env, map[string]any{"name": name, "valueFrom": from.source})
	default:
		m.lose(s.Variable, "its value is not in the file; "+s.Remark)
	}
}

// lookup is the value of the setting with the variable, or its default.
func (m *migration) lookup(variable string) string {
	for _, s := range m.table {
		if s.Variable == variable {
			return cmp.Or(m.get(s), m.fallback(s))
		}
	}
	return ""
}

// isOn reads a switch as aws-node-termination-handler does.
func (m *migration) isOn(variable string) bool {
	on, err := strconv.ParseBool(m.lookup(variable))
	return err == nil && on
}

// converters take over the settings that name one, with their value or default.
var converters = map[string]func(m *migration, s setting, value string){
	// Two switches in one, of which the default is not ours. In queue mode it drains whatever they
	// say.
	"rebalance": func(m *migration, s setting, _ string) {
		policy := interruption.RebalanceIgnore
		switch drains := m.mode == modeQueue || m.isOn("ENABLE_REBALANCE_DRAINING"); {
		case drains && !m.isOn("CORDON_ONLY"):
			policy = interruption.RebalanceReplace
			m.mind(m.name(s), s.Remark)
		case drains || m.isOn("ENABLE_REBALANCE_MONITORING"):
			policy = interruption.RebalanceCordon
		}
		m.put("flags.rebalance", string(policy))
	},
	// The switches of imds mode if one is off: here all are on. Rebalance recommendations are left to
	// --rebalance.
	"watch": func(m *migration, _ setting, _ string) {
		on := []string{"rebalance"}
		for _, kind := range [][2]string{
			{"spot", "ENABLE_SPOT_INTERRUPTION_DRAINING"}, {"lifecycle", "ENABLE_ASG_LIFECYCLE_DRAINING"}, {"scheduled-events", "ENABLE_SCHEDULED_EVENT_DRAINING"},
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
	"heartbeats": func(m *migration, _ setting, value string) {
		interval, _ := strconv.Atoi(value)
		until, _ := strconv.Atoi(m.lookup("HEARTBEAT_UNTIL"))
		if until <= 0 {
			until = 172800
		}
		if interval > 0 && m.mode == modeQueue {
			m.put("flags.heartbeatUntil", fmt.Sprintf("%ds", until))
		}
	},
	// The tag where somebody has asked for it. Its default is to ask for one, which here would only
	// cost calls to EC2: messages about others are none of a Node.
	"managedTag": func(m *migration, s setting, _ string) {
		tag := m.lookup("MANAGED_TAG")
		asked := slices.ContainsFunc(m.table, func(o setting) bool {
			return (o.Variable == s.Variable || o.Variable == "MANAGED_TAG") && m.get(o) != ""
		})
		switch {
		case m.mode != modeQueue || !m.isOn(s.Variable):
		case asked:
			m.put("flags.managedTag", tag)
		default:
			m.mind(m.name(s)+"=true (its default)", s.Remark+". To look at it still: `--managed-tag="+tag+"`")
		}
	},
	// The port of metrics where it serves them, else that of the probes.
	"httpPort": func(m *migration, s setting, value string) {
		if m.isOn("ENABLE_PROMETHEUS_SERVER") != (s.Variable == "PROMETHEUS_SERVER_PORT") {
			return
		}
		if port, err := strconv.Atoi(value); err == nil {
			m.put("COMPONENT.port", port)
		} else {
			m.lose(m.name(s), "is no port")
		}
	},
	"logLevel": func(m *migration, _ setting, value string) { m.put("flags.logLevel", strings.ToLower(value)) },
	"webhookProxy": func(m *migration, s setting, value string) {
		m.put(s.To, strings.Replace(value, "tcp://", "http://", 1))
	},
	// A value goes into a key of the webhook's Secret.
	"webhookKey": func(m *migration, s setting, _ string) {
		key := strings.TrimSuffix(strings.TrimPrefix(s.To, "webhook."), "Key")
		if m.values["webhook.secretName"] == nil {
			m.put("webhook.secretName", "spot-handler-webhook")
		}
		m.put(s.To, key)
		m.mind(m.name(s), "put the value, as it is, into the key "+key+" of the Secret; without the chart, name its file with --webhook-"+key+"-file")
	},
	// The Secret's name; its key is fixed.
	"webhookSecret": func(m *migration, s setting, name string) {
		m.put(s.To, name)
		m.put("webhook.urlKey", "webhookurl")
	},
}

// chartValues prints the values of our chart, with all remarks as comments.
func (m *migration) chartValues() (string, error) {
	m.values["mode"] = m.mode
	if len(m.env) > 0 {
		own := component[m.mode] + ".env"
		extra, _ := m.values[own].([]any)
		m.values[own] = append(m.env, extra...)
	}
	text, err := yaml.Marshal(nest(m.values))
	return string(text) + m.remarks(), err
}

// commandLine prints a command line, with all else and all remarks as comments.
func (m *migration) commandLine() (string, error) {
	text := "spot-handler " + m.mode
	rest := map[string]any{}
	for _, path := range slices.Sorted(maps.Keys(m.values)) {
		value := m.values[path]
		if list, is := value.([]string); is {
			value = strings.Join(list, ",")
		}
		if flag, is := strings.CutPrefix(path, "flags."); is {
			text += fmt.Sprintf(" \\\n  --%s=%s", kebab(flag), console.Command(fmt.Sprint(value)))
		} else if path == component[m.mode]+".port" {
			text += fmt.Sprintf(" \\\n  --http-addr=:%d", value)
		} else {
			rest[path] = value
		}
	}
	text += "\n"
	if len(m.env) > 0 {
		rest[component[m.mode]+".env"] = m.env
	}
	if len(rest) == 0 {
		return text + m.remarks(), nil
	}
	values, err := yaml.Marshal(nest(rest))
	return text + section("Of the chart, or of the container:", slices.Collect(strings.Lines(string(values)))) + m.remarks(), err
}

func (m *migration) remarks() string {
	return section("Different:", m.minds) + section("No counterpart:", m.losses)
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

// nest makes maps of paths.
func nest(paths map[string]any) map[string]any {
	root := map[string]any{}
	for path, value := range paths {
		parts := strings.Split(path, ".")
		at := root
		for _, part := range parts[:len(parts)-1] {
			next, ok := at[part].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[part] = next
			}
			at = next
		}
		at[parts[len(parts)-1]] = value
	}
	return root
}

var capital = regexp.MustCompile(`[A-Z]`)

// kebab is a flag as the command line writes it, where the chart writes camel case.
func kebab(flag string) string {
	return strings.ToLower(capital.ReplaceAllString(flag, "-$0"))
}
