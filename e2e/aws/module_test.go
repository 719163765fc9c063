package aws

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// A module is a Terraform module with the values of its variables. Expressions are
// worked out by HCL itself; what a resource has after it was made, such as its ARN, is
// made up here.
type module struct {
	variables map[string]cty.Value
	locals    map[string]*hclsyntax.Attribute
	blocks    map[string]*hclsyntax.Block // of resources, by type and name
	outputs   map[string]*hclsyntax.Attribute
	known     map[string]cty.Value // locals and resources worked out
}

var moduleDir = filepath.Join("..", "..", "deploy", "terraform")

// moduleBodies are the parsed files of the module by name.
func moduleBodies(t *testing.T) map[string]*hclsyntax.Body {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(moduleDir, "*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no module: %v", err)
	}
	bodies := map[string]*hclsyntax.Body{}
	for _, name := range files {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, diags := hclparse.NewParser().ParseHCL(source, name)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		bodies[filepath.Base(name)] = file.Body.(*hclsyntax.Body)
	}
	return bodies
}

func readModule(t *testing.T, values map[string]cty.Value) *module {
	t.Helper()
	m := &module{
		variables: map[string]cty.Value{}, locals: map[string]*hclsyntax.Attribute{},
		blocks: map[string]*hclsyntax.Block{}, outputs: map[string]*hclsyntax.Attribute{}, known: map[string]cty.Value{},
	}
	var declared []*hclsyntax.Block
	for _, body := range moduleBodies(t) {
		for _, b := range body.Blocks {
			switch b.Type {
			case "variable":
				declared = append(declared, b)
			case "locals":
				maps.Copy(m.locals, b.Body.Attributes)
			case "resource":
				m.blocks[b.Labels[0]+"."+b.Labels[1]] = b
			case "output":
				m.outputs[b.Labels[0]] = b.Body.Attributes["value"]
			}
		}
	}
	for _, b := range declared {
		m.variables[b.Labels[0]] = m.variable(t, b, values[b.Labels[0]])
	}
	for name := range values {
		if _, ok := m.variables[name]; !ok {
			t.Fatalf("the module has no variable %s", name)
		}
	}
	for _, b := range declared {
		m.validate(t, b, "validation")
	}
	return m
}

func (m *module) variable(t *testing.T, b *hclsyntax.Block, value cty.Value) cty.Value {
	t.Helper()
	name := b.Labels[0]
	if value == cty.NilVal {
		def := b.Body.Attributes["default"]
		if def == nil {
			t.Fatalf("variable %s has no value", name)
		}
		value = m.eval(t, def.Expr, nil)
	}
	kind, diags := typeOf(b.Body.Attributes["type"].Expr)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	converted, err := convert.Convert(value, kind)
	if err != nil {
		t.Fatalf("variable %s: %v", name, err)
	}
	return converted
}

// typeOf reads a type constraint; the module uses these.
func typeOf(expr hclsyntax.Expression) (cty.Type, hcl.Diagnostics) {
	if call, diags := hcl.ExprCall(expr); !diags.HasErrors() && (call.Name == "map" || call.Name == "list") {
		kind, diags := typeOf(call.Arguments[0].(hclsyntax.Expression))
		if call.Name == "list" {
			return cty.List(kind), diags
		}
		return cty.Map(kind), diags
	}
	switch word := hcl.ExprAsKeyword(expr); word {
	case "string":
		return cty.String, nil
	case "number":
		return cty.Number, nil
	case "bool":
		return cty.Bool, nil
	}
	return cty.NilType, hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "type is not known here", Subject: expr.Range().Ptr()}}
}

// validate holds a block to its own conditions.
func (m *module) validate(t *testing.T, b *hclsyntax.Block, kind string) {
	t.Helper()
	for _, v := range b.Body.Blocks {
		if v.Type == kind && m.eval(t, v.Body.Attributes["condition"].Expr, nil).False() {
			t.Errorf("%v: %s", b.Labels, m.eval(t, v.Body.Attributes["error_message"].Expr, nil).AsString())
		}
	}
}

// eval works an expression out, and before that what it refers to.
func (m *module) eval(t *testing.T, expr hclsyntax.Expression, own map[string]cty.Value) cty.Value {
	t.Helper()
	scope := map[string]map[string]cty.Value{}
	put := func(root, name string, v cty.Value) {
		if scope[root] == nil {
			scope[root] = map[string]cty.Value{}
		}
		scope[root][name] = v
	}
	for _, ref := range expr.Variables() {
		root := ref.RootName()
		if _, ok := own[root]; ok {
			continue
		}
		step, ok := ref[1].(hcl.TraverseAttr)
		if !ok {
			t.Fatalf("%s: reference to %s is not known here", ref.SourceRange(), root)
		}
		switch root {
		case "var":
			value, ok := m.variables[step.Name]
			if !ok {
				t.Fatalf("%s: no variable %s", ref.SourceRange(), step.Name)
			}
			put(root, step.Name, value)
		case "local":
			put(root, step.Name, m.local(t, step.Name))
		case "data":
			put(root, step.Name, facts[step.Name])
		default:
			put(root, step.Name, m.resource(t, root, step.Name))
		}
	}
	ctx := &hcl.EvalContext{Variables: maps.Clone(own), Functions: functions}
	if ctx.Variables == nil {
		ctx.Variables = map[string]cty.Value{}
	}
	for root, values := range scope {
		ctx.Variables[root] = cty.ObjectVal(values)
	}
	value, diags := expr.Value(ctx)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	return value
}

// facts are the data sources.
var facts = map[string]cty.Value{
	"aws_partition":       fact("partition", partition),
	"aws_region":          fact("id", region),
	"aws_caller_identity": fact("account_id", account),
}

func fact(name, value string) cty.Value {
	return cty.ObjectVal(map[string]cty.Value{"current": cty.ObjectVal(map[string]cty.Value{name: cty.StringVal(value)})})
}

// functions are those of Terraform that the module uses.
var functions = map[string]function.Function{
	"can": tryfunc.CanFunc, "coalesce": stdlib.CoalesceFunc, "concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc,
	"jsonencode": stdlib.JSONEncodeFunc, "length": lengthFunc, "merge": stdlib.MergeFunc, "one": oneFunc, "regex": stdlib.RegexFunc,
}

var oneFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "list", Type: cty.DynamicPseudoType}},
	Type: func(args []cty.Value) (cty.Type, error) {
		return cty.DynamicPseudoType, nil
	},
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		switch all := args[0].AsValueSlice(); len(all) {
		case 0:
			return cty.NullVal(cty.DynamicPseudoType), nil
		case 1:
			return all[0], nil
		default:
			return cty.NilVal, fmt.Errorf("one of %d", len(all))
		}
	},
})

// lengthFunc is Terraform's, which also takes a text.
var lengthFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType}},
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		if args[0].Type() == cty.String {
			return stdlib.Strlen(args[0])
		}
		return stdlib.Length(args[0])
	},
})

func (m *module) local(t *testing.T, name string) cty.Value {
	t.Helper()
	if v, ok := m.known["local."+name]; ok {
		return v
	}
	a := m.locals[name]
	if a == nil {
		t.Fatalf("no local %s", name)
	}
	v := m.eval(t, a.Expr, nil)
	m.known["local."+name] = v
	return v
}

// resource is what a reference to the resource gives: one object, or one for each
// instance where the block has count or for_each.
func (m *module) resource(t *testing.T, kind, name string) cty.Value {
	t.Helper()
	address := kind + "." + name
	if v, ok := m.known[address]; ok {
		return v
	}
	b := m.blocks[address]
	if b == nil {
		t.Fatalf("no resource %s", address)
	}
	var v cty.Value
	switch a := b.Body.Attributes; {
	case a["count"] != nil:
		count, _ := m.eval(t, a["count"].Expr, nil).AsBigFloat().Int64()
		list := []cty.Value{}
		for range count {
			list = append(list, m.instance(t, b, nil))
		}
		v = cty.TupleVal(list)
	case a["for_each"] != nil:
		each := m.eval(t, a["for_each"].Expr, nil).AsValueMap()
		object := map[string]cty.Value{}
		for key, value := range each {
			object[key] = m.instance(t, b, map[string]cty.Value{
				"each": cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal(key), "value": value}),
			})
		}
		v = cty.ObjectVal(object)
	default:
		v = m.instance(t, b, nil)
	}
	m.known[address] = v
	return v
}

// instance has the arguments of a resource, and what AWS would add.
func (m *module) instance(t *testing.T, b *hclsyntax.Block, own map[string]cty.Value) cty.Value {
	t.Helper()
	object := map[string]cty.Value{}
	for name, a := range b.Body.Attributes {
		if name != "count" && name != "for_each" {
			object[name] = m.eval(t, a.Expr, own)
		}
	}
	for _, inner := range b.Body.Blocks {
		if inner.Type == "lifecycle" {
			m.validate(t, &hclsyntax.Block{Labels: b.Labels, Body: inner.Body}, "precondition")
			continue
		}
		object[inner.Type] = m.instance(t, inner, own)
	}
	if name, ok := object["name"]; ok && len(b.Labels) == 2 {
		for added, value := range addedByAWS(b.Labels[0], name.AsString()) {
			object[added] = cty.StringVal(value)
		}
	}
	return cty.ObjectVal(object)
}

func addedByAWS(kind, name string) map[string]string {
	switch kind {
	case "aws_sqs_queue":
		return map[string]string{"arn": arn("sqs", name), "url": queueURL(name), "id": queueURL(name)}
	case "aws_cloudwatch_event_rule":
		return map[string]string{"arn": arn("events", "rule/"+name), "id": name}
	case "aws_iam_role":
		return map[string]string{"arn": roleARN(name), "id": name}
	case "aws_iam_policy":
		return map[string]string{"arn": policyARN(name), "id": policyARN(name)}
	}
	return nil
}

// instances are all objects of resources of the kind, by name and key.
func (m *module) instances(t *testing.T, kind string) map[string]cty.Value {
	t.Helper()
	found := map[string]cty.Value{}
	for _, address := range slices.Sorted(maps.Keys(m.blocks)) {
		of, name, _ := strings.Cut(address, ".")
		if of != kind {
			continue
		}
		v := m.resource(t, of, name)
		switch a := m.blocks[address].Body.Attributes; {
		case a["count"] != nil:
			for i, e := range v.AsValueSlice() {
				found[fmt.Sprintf("%s[%d]", name, i)] = e
			}
		case a["for_each"] != nil:
			for key, e := range v.AsValueMap() {
				found[key] = e
			}
		default:
			found[name] = v
		}
	}
	return found
}

// hclDiagnostics is what a visitor of expressions has to return.
type hclDiagnostics = hcl.Diagnostics

// pathOf are the names of a reference, without indexes.
func pathOf(ref hcl.Traversal) []string {
	var path []string
	for _, step := range ref {
		switch step := step.(type) {
		case hcl.TraverseRoot:
			path = append(path, step.Name)
		case hcl.TraverseAttr:
			path = append(path, step.Name)
		}
	}
	return path
}

// moduleDefaults are the variables' defaults by name, empty for none.
func moduleDefaults(t *testing.T) map[string]string {
	t.Helper()
	m := readModule(t, variablesOf(settings{}))
	defaults := map[string]string{}
	for _, body := range moduleBodies(t) {
		for _, b := range body.Blocks {
			if b.Type != "variable" {
				continue
			}
			defaults[b.Labels[0]] = ""
			if a := b.Body.Attributes["default"]; a != nil {
				if v, err := convert.Convert(m.eval(t, a.Expr, nil), cty.String); err == nil && !v.IsNull() {
					defaults[b.Labels[0]] = v.AsString()
				}
			}
		}
	}
	return defaults
}
