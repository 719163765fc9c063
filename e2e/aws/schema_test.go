package aws

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/awslabs/goformation/v7/schema"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/xeipuuv/gojsonschema"
)

// everything are settings with which every resource is made.
var everything = []settings{
	{},
	{withoutRebalance: true, autoScaling: true, launchHooks: true, kmsKey: key, alarmTopic: topic},
	{autoScaling: true, credentials: "irsa", oidcProvider: "oidc.example.com/id/1"},
	{credentials: "none"},
}

// Names and types of all properties are those that CloudFormation publishes.
func TestCloudFormationSchema(t *testing.T) {
	var published struct {
		Definitions map[string]json.RawMessage `json:"definitions"`
	}
	if err := json.Unmarshal([]byte(schema.CloudformationSchema), &published); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range everything {
		for _, r := range readTemplate(t, parametersOf(s)).resources(t) {
			seen[r.logical] = true
			if _, ok := published.Definitions[r.kind]; !ok {
				t.Errorf("%s: there is no resource type %s", r.logical, r.kind)
				continue
			}
			for _, policy := range []string{"PolicyDocument", "AssumeRolePolicyDocument"} {
				if document, isText := r.properties[policy].(string); isText {
					decoded := map[string]any{} // AWS takes text too, the schema does not say so
					decode(t, document, &decoded)
					r.properties[policy] = decoded
				}
			}
			definitions := map[string]json.RawMessage{}
			for name, d := range published.Definitions {
				if name == r.kind || strings.HasPrefix(name, r.kind+".") || name == "Tag" {
					definitions[name] = d
				}
			}
			validate(t, r, definitions)
		}
	}
	for name := range fields(child(readTemplate(t, parametersOf(settings{})).root, "Resources")) {
		if !seen[name] {
			t.Errorf("no test makes resource %s", name)
		}
	}
}

func validate(t *testing.T, r made, definitions map[string]json.RawMessage) {
	t.Helper()
	rules := gojsonschema.NewGoLoader(map[string]any{"$ref": "#/definitions/" + r.kind, "definitions": definitions})
	result, err := gojsonschema.Validate(rules, gojsonschema.NewGoLoader(map[string]any{"Type": r.kind, "Properties": r.properties}))
	if err != nil {
		t.Fatalf("%s: %v", r.logical, err)
	}
	for _, e := range result.Errors() {
		t.Errorf("%s: %s", r.logical, e)
	}
}

// The linter of CloudFormation's makers has more rules. It is a Python program, and asked
// where it is installed.
func TestCloudFormationLint(t *testing.T) {
	lint, err := exec.LookPath("cfn-lint")
	if err != nil {
		t.Log("cfn-lint is not installed: the schema alone has judged the template")
		return
	}
	out, err := exec.Command(lint, "--regions", "us-east-1", "cn-north-1", "us-gov-west-1", "--include-checks", "I", "--", templateFile).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Every parameter is described, and used; so is every condition.
func TestCloudFormationParameters(t *testing.T) {
	source, err := os.ReadFile(templateFile)
	if err != nil {
		t.Fatal(err)
	}
	c := readTemplate(t, parametersOf(settings{}))
	for name, p := range fields(child(c.root, "Parameters")) {
		if d := child(p, "Description"); d == nil || d.Value == "" {
			t.Errorf("parameter %s is not described", name)
		}
		if !strings.Contains(string(source), "!Ref "+name) && !strings.Contains(string(source), "${"+name+"}") {
			t.Errorf("parameter %s is not used", name)
		}
	}
	for name := range fields(child(c.root, "Conditions")) {
		if !strings.Contains(string(source), "Condition: "+name+"\n") && strings.Count(string(source), name) < 2 {
			t.Errorf("condition %s is not used", name)
		}
	}
}

// A providerSchema is what testdata/terraform-provider-aws.json has of a resource;
// testdata/provider-schema.mjs says how it was made.
type providerSchema struct {
	Required []string
	Optional map[string]string            // types of attributes by name
	Computed []string                     // what can be read
	Blocks   map[string]map[string]string // attributes of nested blocks
}

// Names of all resources, arguments, blocks and attributes are those of the provider, and
// all that is required is there. `terraform validate` does the same, with a provider that
// it has to download.
func TestTerraformSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "terraform-provider-aws.json"))
	if err != nil {
		t.Fatal(err)
	}
	var provider struct {
		Resource, Data map[string]providerSchema
	}
	if err := json.Unmarshal(text, &provider); err != nil {
		t.Fatal(err)
	}
	for file, body := range moduleBodies(t) {
		for _, b := range body.Blocks {
			known := provider.Resource
			if b.Type == "data" {
				known = provider.Data
			} else if b.Type != "resource" {
				continue
			}
			s, ok := known[b.Labels[0]]
			if !ok {
				t.Errorf("%s: no schema of %s", file, b.Labels[0])
				continue
			}
			checkBlock(t, file+" "+strings.Join(b.Labels, "."), b.Body, s)
		}
		checkReads(t, file, body, provider.Resource, provider.Data)
	}
}

func checkBlock(t *testing.T, at string, body *hclsyntax.Body, s providerSchema) {
	t.Helper()
	for name := range body.Attributes {
		if _, ok := s.Optional[name]; !ok && !slices.Contains([]string{"count", "for_each", "depends_on", "provider"}, name) {
			t.Errorf("%s: there is no argument %s", at, name)
		}
	}
	for _, name := range s.Required {
		if body.Attributes[name] == nil {
			t.Errorf("%s: argument %s is required", at, name)
		}
	}
	for _, inner := range body.Blocks {
		if inner.Type == "lifecycle" {
			continue
		}
		attributes, ok := s.Blocks[inner.Type]
		if !ok {
			t.Errorf("%s: there is no block %s", at, inner.Type)
			continue
		}
		for name := range inner.Body.Attributes {
			if attributes[name] == "" {
				t.Errorf("%s: block %s has no argument %s", at, inner.Type, name)
			}
		}
	}
}

// checkReads looks at the references to attributes of resources and data sources.
func checkReads(t *testing.T, file string, body *hclsyntax.Body, resources, data map[string]providerSchema) {
	t.Helper()
	_ = hclsyntax.VisitAll(body, func(n hclsyntax.Node) hclDiagnostics {
		e, ok := n.(*hclsyntax.ScopeTraversalExpr)
		if !ok {
			return nil
		}
		path := pathOf(e.Traversal)
		known := resources
		if path[0] == "data" {
			known, path = data, path[1:]
		}
		s, ok := known[path[0]]
		if !ok || len(path) < 3 {
			return nil
		}
		if attribute := path[2]; !slices.Contains(s.Computed, attribute) {
			t.Errorf("%s: %s has no attribute %s", file, strings.Join(path[:2], "."), attribute)
		}
		return nil
	})
}

// Every variable has a type and a description, every output a description, and what is
// declared is used.
func TestTerraformVariables(t *testing.T) {
	bodies := moduleBodies(t)
	used := map[string]bool{}
	for _, body := range bodies {
		_ = hclsyntax.VisitAll(body, func(n hclsyntax.Node) hclDiagnostics {
			if e, ok := n.(*hclsyntax.ScopeTraversalExpr); ok {
				path := pathOf(e.Traversal)
				used[strings.Join(path[:min(2, len(path))], ".")] = true
			}
			return nil
		})
	}
	for file, body := range bodies {
		for _, b := range body.Blocks {
			switch b.Type {
			case "variable":
				if b.Body.Attributes["type"] == nil || b.Body.Attributes["description"] == nil {
					t.Errorf("%s: variable %s needs a type and a description", file, b.Labels[0])
				}
				if !used["var."+b.Labels[0]] {
					t.Errorf("%s: variable %s is not used", file, b.Labels[0])
				}
			case "output":
				if b.Body.Attributes["description"] == nil {
					t.Errorf("%s: output %s needs a description", file, b.Labels[0])
				}
			case "locals":
				for name := range b.Body.Attributes {
					if !used["local."+name] {
						t.Errorf("%s: local %s is not used", file, name)
					}
				}
			}
		}
	}
}

// The files are formatted as `terraform fmt` does it.
func TestTerraformFormat(t *testing.T) {
	for file := range moduleBodies(t) {
		source, err := os.ReadFile(filepath.Join(moduleDir, file))
		if err != nil {
			t.Fatal(err)
		}
		if string(hclwrite.Format(source)) != string(source) {
			t.Errorf("%s is not formatted: run terraform fmt", file)
		}
	}
}
