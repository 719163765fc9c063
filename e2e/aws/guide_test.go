package aws

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// section is the part of a text below a heading, up to the next heading of any level.
func section(t *testing.T, file, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", file, heading)
	}
	if end := regexp.MustCompile(`(?m)^#`).FindStringIndex(rest); end != nil {
		rest = rest[:end[0]]
	}
	return rest
}

// The rules that the guide lists are those of the kinds that the daemon parses.
func TestGuideListsTheRules(t *testing.T) {
	listed := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| .+ \\| `(\\S+)` \\| `(.+?)` \\| .+ \\|$").FindAllStringSubmatch(section(t, "deploy/aws.md", "## Rules"), -1) {
		listed[row[2]] = row[1]
	}
	if diff := cmp.Diff(handled(t), listed); diff != "" {
		t.Errorf("kinds (-parsed by the daemon +deploy/aws.md):\n%s", diff)
	}
}

// The actions in the guide's tables are the templates'.
func TestGuideListsTheActions(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| `([a-z0-9]+:\\w+)` \\|")
	var listed []string
	for _, heading := range []string{"## Permissions", "### Nodes of Auto Scaling groups"} {
		for _, row := range rows.FindAllStringSubmatch(section(t, "deploy/aws.md", heading), -1) {
			listed = append(listed, row[1])
		}
	}
	listed = unique(listed)
	everyWay(t, settings{autoScaling: true}, func(t *testing.T, d deployment) {
		if diff := cmp.Diff(actions(d.permissions), listed); diff != "" {
			t.Errorf("actions (-template +deploy/aws.md):\n%s", diff)
		}
	})
}

// Everything that the guide names a choice is one of both templates, by the names and with the defaults
// that it says; both describe all of theirs.
func TestGuideNamesChoices(t *testing.T) {
	defaults := moduleDefaults(t)
	for name, p := range fields(child(readTemplate(t, parametersOf(settings{})).root, "Parameters")) {
		if defaults[name] = ""; child(p, "Default") != nil {
			defaults[name] = child(p, "Default").Value
		}
		if child(p, "Description") == nil {
			t.Errorf("the parameter %s has no description", name)
		}
	}
	rows := regexp.MustCompile(`(?m)^\| (\S+) \| (\S+) \| (\S+) \| .+ \|$`).FindAllStringSubmatch(section(t, "deploy/aws.md", "## What to choose"), -1)
	if len(rows) < 10 {
		t.Fatalf("the guide names %d choices", len(rows))
	}
	for _, row := range rows[1:] {
		for _, name := range row[1:3] {
			name, said := strings.Trim(name, "`"), strings.Trim(row[3], "`")
			def, ok := defaults[name]
			if !ok {
				t.Errorf("deploy/aws.md names %s, which no template has", name)
			}
			if said != def && (said != "–" && !strings.Contains(said, "<") || def != "") {
				t.Errorf("deploy/aws.md says that %s is %s without being set, the template says %q", name, said, def)
			}
		}
	}
}

// The Terraform that the guide and the page of recipes show sets variables of the module that there are,
// with all that have no default, and reads outputs of it.
func TestGuideUsesTheModule(t *testing.T) {
	for page, source := range map[string]string{
		"deploy/docs/install-on.md": "git::https://github.com/spot-handler/spot-handler.git//deploy/terraform?ref=COMMIT",
	} {
		_, shown, _ := strings.Cut(section(t, page, "## Terraform"), "```hcl\n")
		shown, _, _ = strings.Cut(shown, "```")
		file, diags := hclparse.NewParser().ParseHCL([]byte(shown), page)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		modules, outputs := 0, 0
		for _, b := range file.Body.(*hclsyntax.Body).Blocks {
			if b.Type == "module" {
				modules++
				callsModule(t, b.Body.Attributes, page, source)
				continue
			}
			for _, a := range b.Body.Attributes {
				for _, ref := range a.Expr.Variables() {
					outputs++
					output, ok := ref[len(ref)-1].(hcl.TraverseAttr)
					if !ok || ref.RootName() != "module" || len(ref) != 3 || readModule(t, map[string]cty.Value{"cluster_name": cty.StringVal("c")}).outputs[output.Name] == nil {
						t.Errorf("%s: %s is no output of the module", page, shown[ref.SourceRange().Start.Byte:ref.SourceRange().End.Byte])
					}
				}
			}
		}
		if modules != 1 || outputs == 0 {
			t.Errorf("%s calls %d modules, and uses %d outputs", page, modules, outputs)
		}
	}
}

// callsModule: the arguments are those of the module from this source.
func callsModule(t *testing.T, arguments hclsyntax.Attributes, page, source string) {
	t.Helper()
	values := map[string]cty.Value{}
	for name, a := range arguments {
		value, diags := a.Expr.Value(nil)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		values[name] = value
	}
	if got := values["source"].AsString(); got != source {
		t.Errorf("%s: the source of the module is %q, want %q", page, got, source)
	}
	delete(values, "source")
	m := readModule(t, values) // which fails without a value that it needs
	for name := range values {
		if _, ok := m.variables[name]; !ok {
			t.Errorf("%s: the module has no variable %s", page, name)
		}
	}
}
