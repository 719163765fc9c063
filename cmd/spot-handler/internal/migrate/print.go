package migrate

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// print is what came of it in one of the three forms, with all remarks as comments: the whole
// can be used as it is.
func (m *migration) print(output string) (string, error) {
	var b strings.Builder
	switch output {
	case outputFlags:
		fmt.Fprintf(&b, "spot-handler %s", m.mode)
		for _, f := range m.flags {
			fmt.Fprintf(&b, " \\\n  --%s=%s", f.name, quoted(f.text))
		}
		b.WriteString("\n")
		section(&b, "Variables beside the flags:", "=", m.env)
		m.sectionFrom(&b)
		m.sectionValues(&b)
	case outputEnv:
		fmt.Fprintf(&b, "# of: spot-handler %s\n", m.mode)
		for _, f := range m.flags {
			fmt.Fprintf(&b, "%s=%s\n", variable(f.name), quoted(f.text))
		}
		for _, v := range m.env {
			fmt.Fprintf(&b, "%s=%s\n", v.name, quoted(v.text))
		}
		m.sectionFrom(&b)
		m.sectionValues(&b)
	default:
		text, err := yaml.Marshal(m.chartValues())
		if err != nil {
			return "", fmt.Errorf("write values: %w", err)
		}
		b.Write(text)
	}
	section(&b, "Different:", ": ", m.minds)
	section(&b, "No counterpart:", ": ", m.losses)
	return b.String(), nil
}

func section(b *strings.Builder, title, separator string, list []pair) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(b, "\n# %s\n", title)
	for _, p := range list {
		fmt.Fprintf(b, "#   %s%s%s\n", p.name, separator, strings.ReplaceAll(p.text, "\n", " "))
	}
}

func (m *migration) sectionFrom(b *strings.Builder) {
	if len(m.from) > 0 {
		commented(b, "Of the container, as their values are in the cluster:", map[string]any{"env": envList(nil, m.from)})
	}
}

func (m *migration) sectionValues(b *strings.Builder) {
	if len(m.values) > 0 {
		commented(b, "Of the chart:", nest(m.values))
	}
}

func commented(b *strings.Builder, title string, content any) {
	text, err := yaml.Marshal(content)
	if err != nil {
		return // maps of what was read from YAML: cannot happen
	}
	fmt.Fprintf(b, "\n# %s\n", title)
	for line := range strings.Lines(string(text)) {
		b.WriteString("#   " + line)
	}
}

// chartValues are the values of our chart: flags by their names in camel case, those of
// the mode alone below the mode.
func (m *migration) chartValues() map[string]any {
	paths := map[string]any{"mode": m.mode}
	maps.Copy(paths, m.values)
	for _, f := range m.flags {
		at := "flags." + camel(f.name)
		var value any = f.text
		switch {
		case strings.HasPrefix(f.text, webhookDir): // the chart has a Secret, and makes the flag of its keys
			m.webhookValues(paths, path.Base(f.text))
			continue
		case f.name == "http-addr": // the chart has a port, and makes the flag of it
			at = component[m.mode] + ".port"
			if port, err := strconv.Atoi(strings.TrimPrefix(f.text, ":")); err == nil {
				value = port
			}
		case f.name == "watch":
			value = strings.Split(f.text, ",")
		}
		if f.text == "true" || f.text == "false" {
			value = isTrue(f.text)
		}
		paths[at] = value
	}
	if list := envList(m.env, m.from); len(list) > 0 {
		at := component[m.mode] + ".env"
		extra, _ := paths[at].([]any)
		paths[at] = append(list, extra...)
	}
	return nest(paths)
}

// component is the block of our chart's values for the pods that take the mode's notices.
var component = map[string]string{modeIMDS: "imds", modeQueue: "controller"}

// webhookValues has the chart mount a Secret with the key: the one that the URL is in, or one of
// their own.
func (m *migration) webhookValues(paths map[string]any, key string) {
	if paths["webhook.secretName"] == nil {
		paths["webhook.secretName"], paths["webhook.urlKey"] = "spot-handler-webhook", ""
	}
	paths["webhook."+key+"Key"] = key
}

// envList is a container's env.
func envList(env []pair, from []variableFrom) []any {
	var list []any
	for _, v := range env {
		list = append(list, map[string]any{"name": v.name, "value": v.text})
	}
	for _, v := range from {
		list = append(list, map[string]any{"name": v.name, "valueFrom": v.from})
	}
	return list
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

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+-]+$`)

// quoted is a text as a shell takes it.
func quoted(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
