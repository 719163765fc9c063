// Package migrate turns the settings of aws-node-termination-handler 1.25 into those of
// spot-handler, and says what has no counterpart and why. It talks to nothing, and what it
// prints can be used as it is: remarks are comments.
package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

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

// Convert reads settings, in any of the forms that its command's help lists, and returns ours in
// the form of output. An empty output is values for values, and flags for all else.
func Convert(text []byte, output string) (string, error) {
	if output != "" && !slices.Contains(Outputs(), output) {
		return "", fmt.Errorf("--output: %q: want one of %s", output, strings.Join(Outputs(), ", "))
	}
	given, err := readGiven(text)
	if err != nil {
		return "", err
	}
	m := newMigration(given)
	m.run()
	if output == "" {
		output = outputFlags
		if given.chart {
			output = outputValues
		}
	}
	return m.print(output)
}

// variable is the name under which spot-handler takes a flag from the environment.
func variable(flag string) string {
	return "SPOT_HANDLER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// migration is one run of migrate: what was given, and what came of it.
type migration struct {
	given given
	table []setting
	mode  string

	flags  []pair         // ours, in the order of the table
	env    []pair         // variables of others that stay variables
	from   []variableFrom // variables whose value is in the cluster
	values map[string]any // of our chart, besides flags and variables, by path
	minds  []pair         // what is different, by the setting's name
	losses []pair         // what there is not, by the setting's name
}

// pair is a name and a text.
type pair struct{ name, text string }

// variableFrom is a variable with what Kubernetes calls its valueFrom.
type variableFrom struct {
	name string
	from any
}

func newMigration(g given) *migration {
	m := &migration{given: g, table: slices.Concat(settings, chartSettings), mode: modeIMDS, values: map[string]any{}}
	if m.isOn("ENABLE_SQS_TERMINATION_DRAINING") {
		m.mode = modeQueue
	}
	for i, s := range m.table {
		if g.chart && s.ofChart != "" {
			m.table[i].fallback = s.ofChart
		}
	}
	return m
}

func (m *migration) flag(name, value string) { m.flags = append(m.flags, pair{name, value}) }
func (m *migration) mind(name, text string)  { m.minds = append(m.minds, pair{name, text}) }
func (m *migration) lose(name, text string)  { m.losses = append(m.losses, pair{name, text}) }

// run takes over every setting of the tables, and names what is in none of them.
func (m *migration) run() {
	for _, s := range m.table {
		m.take(s)
	}
	if m.mode == modeQueue && m.lookup("QUEUE_URL") == "" && m.given.froms["QUEUE_URL"] == nil {
		m.mind("QUEUE_URL", "not given: --queue-url has to be")
	}
	for _, name := range m.given.unknown() {
		m.lose(name, "is no setting of aws-node-termination-handler 1.25")
	}
}

func (m *migration) take(s setting) {
	if from := m.given.froms[s.variable]; from != nil && s.variable != "" {
		m.takeFrom(s, from)
		return
	}
	name, value := s.nameIn(m.given), m.given.get(s)
	isGiven := value != "" && value != s.fallback
	switch {
	case s.convert != nil:
		if isGiven || s.always {
			s.convert(m, s, cmp.Or(value, s.fallback))
		}
	case s.flag != "" && isGiven:
		m.flag(s.flag, value)
		if s.remark != "" {
			m.mind(name, s.remark)
		}
	case s.env != "" && isGiven:
		m.env = append(m.env, pair{s.env, value})
	case s.path != "" && isGiven:
		m.values[strings.Replace(s.path, "COMPONENT", component[m.mode], 1)] = m.given.raw(s)
		if s.remark != "" {
			m.mind(name, s.remark)
		}
	case s.flag == "" && s.env == "" && s.path == "":
		m.miss(s, name, value)
	}
}

// miss tells what there is not here, where it is asked for: by a value, or by its default.
func (m *migration) miss(s setting, name, value string) {
	asked := cmp.Or(value, s.fallback)
	if s.harmless == "*" || asked == cmp.Or(s.harmless, s.fallback) {
		return
	}
	if asked == s.fallback && s.byDefault != m.mode {
		return // without effect in this mode
	}
	if value == "" {
		asked += " (its default)"
	}
	m.lose(name+"="+short(asked), s.remark)
}

// takeFrom takes over a variable whose value is not known here.
func (m *migration) takeFrom(s setting, from any) {
	switch {
	case s.flag != "":
		m.from = append(m.from, variableFrom{variable(s.flag), from})
	case s.variable == "WEBHOOK_URL":
		m.webhookURLFrom(s, from)
	case s.variable == "WEBHOOK_PROXY":
		m.from = append(m.from, variableFrom{variable("webhook-proxy"), from})
	case s.env != "":
		if ref, ok := from.(map[string]any); ok && ref["fieldRef"] != nil {
			return // the downward API: our manifests and our chart do the same where it is needed
		}
		m.from = append(m.from, variableFrom{s.env, from})
	default:
		m.lose(s.variable, "its value is not in the file; "+s.remark)
	}
}

// webhookURLFrom takes over the Secret that the URL is in.
func (m *migration) webhookURLFrom(s setting, from any) {
	source, _ := from.(map[string]any)
	ref, _ := source["secretKeyRef"].(map[string]any)
	if ref["name"] == nil || ref["key"] == nil {
		m.lose(s.variable, "its value is not in the file: put it into a Secret, and name that in webhook.secretName")
		return
	}
	m.values["webhook.secretName"], m.values["webhook.urlKey"] = ref["name"], ref["key"]
}

// lookup is the value of the setting with the variable, or its default.
func (m *migration) lookup(variable string) string {
	for _, s := range m.table {
		if s.variable == variable {
			if value := m.given.get(s); value != "" {
				return value
			}
			return s.fallback
		}
	}
	return ""
}

// renamed is the value of a setting that has an older name, too, and whether it was given by
// either. The older counts where the other is not given; its chart always gives both.
func (m *migration) renamed(name, older string) (value string, isGiven bool) {
	if value := m.given.variables[older]; value != "" && m.given.variables[name] == "" {
		return value, true
	}
	value = m.lookup(name)
	for _, s := range m.table {
		isGiven = isGiven || s.variable == name && m.given.get(s) != ""
	}
	return value, isGiven
}

func (m *migration) isOn(variable string) bool { return isTrue(m.lookup(variable)) }

// isTrue reads a switch as aws-node-termination-handler does.
func isTrue(text string) bool {
	on, err := strconv.ParseBool(text)
	return err == nil && on
}

// short is a value for a line of text.
func short(value string) string {
	value = strings.Join(strings.Fields(value), " ")
	if len(value) > 60 {
		value = value[:60] + "..."
	}
	return value
}
