// Package migrate turns the settings of aws-node-termination-handler 1.25 into those of
// spot-handler, and says what has no counterpart and why. It talks to nothing, and what it
// prints can be used as it is: remarks are comments. What becomes of each setting is in
// settings.yaml; the rest is what interprets it.
package migrate

import (
	"cmp"
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"spot-handler/cmd/spot-handler/internal/console"
)

//go:embed settings.yaml
var settings []byte

// setting is a row of settings.yaml, which says what its fields mean.
type setting struct {
	Variable, Value, Default, ChartDefault string
	Here, Remark, Elsewhere                string
	Flag, Env, Path, Mode, Convert         string
	Harmless, ByDefault                    string
	Always                                 bool
}

// Rows are all settings, as the documentation lists them.
func Rows() (rows []setting, err error) {
	err = yaml.UnmarshalStrict(settings, &rows)
	return rows, err
}

// The forms in which settings are printed.
const (
	outputFlags  = "flags"  // a command line
	outputEnv    = "env"    // variables
	outputValues = "values" // of our chart
)

// Outputs are the forms in which settings are printed: as a command line, as variables, or as
// values of our chart.
func Outputs() []string { return []string{outputFlags, outputEnv, outputValues} }

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
	if output == "" && given.chart {
		output = outputValues
	}
	return m.print(output)
}

// migration is one run of migrate: what was given, and what came of it.
type migration struct {
	given
	table []setting
	mode  string

	flags  []pair         // ours, in the order of the table
	env    []pair         // variables of others that stay variables
	from   []any          // of a container's env: variables whose value is in the cluster
	values map[string]any // of our chart, besides flags and variables, by path
	minds  []pair         // what is different, by the setting's name
	losses []pair         // what there is not, by the setting's name
}

// pair is a name and a text.
type pair struct{ name, text string }

func (m *migration) flag(name, value string) { m.flags = append(m.flags, pair{name, value}) }
func (m *migration) mind(name, text string)  { m.minds = append(m.minds, pair{name, text}) }
func (m *migration) lose(name, text string)  { m.losses = append(m.losses, pair{name, text}) }

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
	switch {
	case s.Convert != "":
		if isGiven || s.Always {
			converters[s.Convert](m, s, cmp.Or(value, m.fallback(s)))
		}
	case s.Flag == "" && s.Env == "" && s.Path == "":
		m.miss(s, name, value)
	case !isGiven:
	case s.Mode != "" && s.Mode != m.mode:
		if s.Elsewhere != "" {
			m.lose(name, s.Elsewhere)
		}
	case s.Env != "":
		m.env = append(m.env, pair{s.Env, value})
	default:
		if s.Flag != "" {
			m.flag(s.Flag, value)
		} else {
			m.values[strings.Replace(s.Path, "COMPONENT", component[m.mode], 1)] = m.raw(s)
		}
		if s.Remark != "" {
			m.mind(name, s.Remark)
		}
	}
}

// miss says what there is not here, where it is asked for: by a value, or by its default.
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
	m.lose(name+"="+asked, s.Remark)
}

// takeFrom takes over a variable whose value is not known here.
func (m *migration) takeFrom(s setting, from valueFrom) {
	source, _ := from.source.(map[string]any)
	secret, _ := source["secretKeyRef"].(map[string]any)
	switch {
	case s.Variable == "WEBHOOK_URL":
		if secret["name"] == nil || secret["key"] == nil {
			m.lose(s.Variable, "its value is not in the file: put it into a Secret, and name that in webhook.secretName")
			return
		}
		m.values["webhook.secretName"], m.values["webhook.urlKey"] = secret["name"], secret["key"]
	case s.Env != "" && source["fieldRef"] != nil: // the downward API: our manifests and our chart do the same where it is needed
	case s.Env != "" || s.Flag != "" && (s.Convert == "" || s.Convert == "webhookProxy"):
		m.from = append(m.from, map[string]any{"name": cmp.Or(s.Env, variable(s.Flag)), "valueFrom": from.source})
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

func (m *migration) isOn(variable string) bool { return isTrue(m.lookup(variable)) }

// isTrue reads a switch as aws-node-termination-handler does.
func isTrue(text string) bool {
	on, err := strconv.ParseBool(text)
	return err == nil && on
}

// variable is the name under which spot-handler takes a flag from the environment.
func variable(flag string) string {
	return "SPOT_HANDLER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// print is what came of it in one of the three forms, with all remarks as comments: the whole
// can be used as it is.
func (m *migration) print(output string) (string, error) {
	var b strings.Builder
	commented := func(title string, content any) error {
		text, err := yaml.Marshal(content)
		fmt.Fprintf(&b, "\n# %s\n", title)
		for line := range strings.Lines(string(text)) {
			b.WriteString("#   " + line)
		}
		return err
	}
	section := func(title, separator string, list []pair) {
		if len(list) > 0 {
			fmt.Fprintf(&b, "\n# %s\n", title)
		}
		for _, p := range list {
			fmt.Fprintf(&b, "#   %s%s%s\n", p.name, separator, strings.ReplaceAll(p.text, "\n", " "))
		}
	}
	var err error
	switch output {
	case outputValues:
		var text []byte
		text, err = yaml.Marshal(m.chartValues())
		b.Write(text)
	case outputEnv:
		fmt.Fprintf(&b, "# of: spot-handler %s\n", m.mode)
		for _, f := range m.flags {
			fmt.Fprintf(&b, "%s=%s\n", variable(f.name), console.Command(f.text))
		}
		for _, v := range m.env {
			fmt.Fprintf(&b, "%s=%s\n", v.name, console.Command(v.text))
		}
	default:
		fmt.Fprintf(&b, "spot-handler %s", m.mode)
		for _, f := range m.flags {
			fmt.Fprintf(&b, " \\\n  --%s=%s", f.name, console.Command(f.text))
		}
		b.WriteString("\n")
		section("Variables beside the flags:", "=", m.env)
	}
	if output != outputValues && len(m.from) > 0 {
		err = commented("Of the container, as their values are in the cluster:", map[string]any{"env": m.from})
	}
	if output != outputValues && len(m.values) > 0 {
		err = cmp.Or(err, commented("Of the chart:", nest(m.values)))
	}
	section("Different:", ": ", m.minds)
	section("No counterpart:", ": ", m.losses)
	return b.String(), err
}

// chartValues are the values of our chart: flags by their names in camel case, those of
// the mode alone below the mode.
func (m *migration) chartValues() map[string]any {
	own := component[m.mode]
	m.values["mode"] = m.mode
	for _, f := range m.flags {
		port, err := strconv.Atoi(strings.TrimPrefix(f.text, ":"))
		switch {
		case strings.HasPrefix(f.text, webhookDir): // the chart has a Secret, and makes the flag of its keys
			if m.values["webhook.secretName"] == nil {
				m.values["webhook.secretName"], m.values["webhook.urlKey"] = "spot-handler-webhook", ""
			}
			m.values["webhook."+path.Base(f.text)+"Key"] = path.Base(f.text)
		case f.name == "http-addr" && err == nil: // the chart has a port, and makes the flag of it
			m.values[own+".port"] = port
		case f.name == "http-addr":
			m.values[own+".port"] = f.text
		case f.name == "watch":
			m.values["flags.watch"] = strings.Split(f.text, ",")
		case f.text == "true" || f.text == "false":
			m.values["flags."+camel(f.name)] = isTrue(f.text)
		default:
			m.values["flags."+camel(f.name)] = f.text
		}
	}
	var env []any
	for _, v := range m.env {
		env = append(env, map[string]any{"name": v.name, "value": v.text})
	}
	if env = append(env, m.from...); len(env) > 0 {
		extra, _ := m.values[own+".env"].([]any)
		m.values[own+".env"] = append(env, extra...)
	}
	return nest(m.values)
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

// camel is a flag's name as the chart writes it.
func camel(flag string) string {
	parts := strings.Split(flag, "-")
	for i := 1; i < len(parts); i++ {
		parts[i] = strings.ToUpper(parts[i][:1]) + parts[i][1:]
	}
	return strings.Join(parts, "")
}
