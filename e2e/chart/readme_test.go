package chart

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v3"
)

var writeReadme = flag.Bool("write", false, "write the chart's README")

// The chart's README, which Artifact Hub shows, is made from Chart.yaml and values.yaml: `go test ./e2e/chart -run
// TestReadme -write` writes it.
func TestReadme(t *testing.T) {
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "README.md")
	want := readmeOf(t, dir)
	if *writeReadme {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what Chart.yaml and values.yaml make it (%v): run go test ./e2e/chart -run TestReadme -write", file, err)
	}
}

// What the chart says of itself is there: people and Artifact Hub look for it.
func TestChartSaysWhoAndWhere(t *testing.T) {
	dir, err := Dir()
	if err != nil {
		t.Fatal(err)
	}
	chart := chartIn(t, dir)
	for what, value := range map[string]string{"home": chart.Home, "icon": chart.Icon, "license": chart.Annotations["artifacthub.io/license"]} {
		if value == "" {
			t.Errorf("Chart.yaml has no %s", what)
		}
	}
	if len(chart.Sources) == 0 || len(chart.Maintainers) == 0 || len(chart.Keywords) < 5 {
		t.Errorf("Chart.yaml has %d sources, %d maintainers and %d keywords", len(chart.Sources), len(chart.Maintainers), len(chart.Keywords))
	}
	_, path, _ := strings.Cut(chart.Icon, "/main/")
	if _, err := os.Stat(filepath.Join(dir, "..", "..", path)); path == "" || err != nil {
		t.Errorf("the icon %s is not in the repository: %v", chart.Icon, err)
	}
	for _, m := range regexp.MustCompile(`/blob/main/(\S+)`).FindAllStringSubmatch(chart.Annotations["artifacthub.io/links"], -1) {
		if _, err := os.Stat(filepath.Join(dir, "..", "..", m[1])); err != nil {
			t.Errorf("the link to %s: %v", m[1], err)
		}
	}
}

type chartFile struct {
	Name, Description, Home, Icon, KubeVersion string
	Sources, Keywords                          []string
	Maintainers                                []struct{ Name string }
	Annotations                                map[string]string
}

func chartIn(t *testing.T, dir string) (c chartFile) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func readmeOf(t *testing.T, dir string) []byte {
	t.Helper()
	chart := chartIn(t, dir)
	text, err := os.ReadFile(filepath.Join(dir, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values goyaml.Node
	if err := goyaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!-- Made from Chart.yaml and values.yaml: see TestReadme in e2e/chart. -->\n# %s\n\n%s\n\n", chart.Name, chart.Description)
	fmt.Fprintf(&b, "How to install it, and what it needs: [install](%[1]s/blob/main/deploy/docs/install.md), and [install on\n"+
		"…](%[1]s/blob/main/deploy/docs/install-on.md) with values for Karpenter, EKS, Argo CD and others. Kubernetes %[2]s.\n", chart.Home, chart.KubeVersion)
	table(&b, "Values", "", values.Content[0], func(value *goyaml.Node) bool { return !hasKeys(value) })
	for i := 0; i < len(values.Content[0].Content); i += 2 {
		key, value := values.Content[0].Content[i], values.Content[0].Content[i+1]
		if hasKeys(value) {
			table(&b, "`"+key.Value+"`", comments(key, value), value, func(*goyaml.Node) bool { return true })
		}
	}
	return b.Bytes()
}

// hasKeys reports whether a value is a map with a section of its own.
func hasKeys(value *goyaml.Node) bool {
	return value.Kind == goyaml.MappingNode && len(value.Content) > 0
}

// table is a section with the values of a map that are shown there.
func table(b *bytes.Buffer, title, text string, of *goyaml.Node, shown func(*goyaml.Node) bool) {
	fmt.Fprintf(b, "\n## %s\n\n", title)
	if text != "" {
		fmt.Fprintf(b, "%s\n\n", text)
	}
	b.WriteString("| value | default | meaning |\n|---|---|---|\n")
	prefix := strings.Trim(title, "`") + "."
	if !strings.HasPrefix(title, "`") {
		prefix = ""
	}
	rows(b, prefix, of, shown)
}

func rows(b *bytes.Buffer, prefix string, of *goyaml.Node, shown func(*goyaml.Node) bool) {
	for i := 0; i < len(of.Content); i += 2 {
		key, value := of.Content[i], of.Content[i+1]
		if !shown(value) {
			continue
		}
		if hasKeys(value) && value.Style&goyaml.FlowStyle == 0 && prefix != "" && strings.Count(prefix, ".") < 2 && !strings.ContainsAny(value.Content[0].Value, "/._") {
			if text := comments(key, value); text != "" {
				fmt.Fprintf(b, "| `%s` | | %s |\n", prefix+key.Value, text)
			}
			rows(b, prefix+key.Value+".", value, shown)
			continue
		}
		text, _ := goyaml.Marshal(bare(value)) // it was read from YAML
		fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", prefix+key.Value, strings.Join(strings.Fields(string(text)), " "), comments(key, value))
	}
}

// bare is the value in one line, without comments.
func bare(value *goyaml.Node) *goyaml.Node {
	alone := *value
	alone.HeadComment, alone.LineComment, alone.FootComment = "", "", ""
	alone.Style |= goyaml.FlowStyle
	alone.Content = nil
	for _, child := range value.Content {
		alone.Content = append(alone.Content, bare(child))
	}
	return &alone
}

// example is a line of a comment that shows values.
var example = regexp.MustCompile(`^#\s{3,}\w[\w.]*: `)

// comments are what stands above and beside a value, in one line.
func comments(key, value *goyaml.Node) string {
	var lines []string
	for _, comment := range []string{key.HeadComment, cmp.Or(value.LineComment, key.LineComment)} {
		for line := range strings.Lines(comment) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "#") && !example.MatchString(line) {
				lines = append(lines, strings.TrimLeft(line, "# "))
			}
		}
	}
	text := strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
	text = strings.TrimSuffix(text, " For example:")
	return strings.ReplaceAll(strings.ReplaceAll(text, "|", "\\|"), "<", "&lt;")
}
