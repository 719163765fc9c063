package aws

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// A template is a CloudFormation template with the values of its parameters. It knows the
// functions that ours uses and refuses all others.
type template struct {
	root       *yaml.Node
	parameters map[string]any // text, an int of type Number, or a list
	conditions map[string]bool
}

// templateFile is checked as text too.
var templateFile = filepath.Join("..", "..", "deploy", "cloudformation", "spot-handler.yaml")

func readTemplate(t *testing.T, overrides map[string]string) *template {
	t.Helper()
	text, err := os.ReadFile(templateFile)
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	c := &template{root: doc.Content[0], conditions: map[string]bool{}, parameters: map[string]any{
		"AWS::Partition": partition, "AWS::Region": region, "AWS::AccountId": account, "AWS::StackName": "stack",
	}}
	c.takeParameters(t, overrides)
	for name, n := range fields(child(c.root, "Conditions")) {
		value, _, err := c.value(n)
		if err != nil {
			t.Fatalf("condition %s: %v", name, err)
		}
		c.conditions[name] = value.(bool)
	}
	return c
}

// takeParameters sets every parameter, by its default or the override, and holds the
// value to what the template allows.
func (c *template) takeParameters(t *testing.T, overrides map[string]string) {
	t.Helper()
	declared := fields(child(c.root, "Parameters"))
	for name := range overrides {
		if declared[name] == nil {
			t.Fatalf("the template has no parameter %s", name)
		}
	}
	for name, n := range declared {
		value, given := overrides[name]
		if def := child(n, "Default"); !given && def != nil {
			value, given = def.Value, true
		}
		if !given {
			t.Fatalf("parameter %s has no value", name)
		}
		if pattern := child(n, "AllowedPattern"); pattern != nil && !regexp.MustCompile(pattern.Value).MatchString(value) {
			t.Errorf("parameter %s: %q does not match %s", name, value, pattern.Value)
		}
		if values := child(n, "AllowedValues"); values != nil && !strings.Contains(" "+join(values)+" ", " "+value+" ") {
			t.Errorf("parameter %s: %q is none of %s", name, value, join(values))
		}
		c.parameters[name] = value
		switch child(n, "Type").Value {
		case "CommaDelimitedList":
			list := []any{}
			for _, element := range strings.Split(value, ",") { // of an empty text, one empty element
				list = append(list, element)
			}
			c.parameters[name] = list
		case "Number":
			number, err := strconv.Atoi(value)
			if err != nil || number < atoi(child(n, "MinValue")) || number > atoi(child(n, "MaxValue")) {
				t.Errorf("parameter %s: %s is out of bounds", name, value)
			}
			c.parameters[name] = number
		}
	}
}

func atoi(n *yaml.Node) int {
	v, _ := strconv.Atoi(n.Value)
	return v
}

func join(list *yaml.Node) string {
	var values []string
	for _, n := range list.Content {
		values = append(values, n.Value)
	}
	return strings.Join(values, " ")
}

// child is the field of a mapping, or nil.
func child(n *yaml.Node, name string) *yaml.Node { return fields(n)[name] }

func fields(n *yaml.Node) map[string]*yaml.Node {
	found := map[string]*yaml.Node{}
	if n == nil || n.Kind != yaml.MappingNode {
		return found
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		found[n.Content[i].Value] = n.Content[i+1]
	}
	return found
}

// value works a node out. present is false for AWS::NoValue: the field or element that has
// it is not there.
func (c *template) value(n *yaml.Node) (value any, present bool, err error) {
	if strings.HasPrefix(n.Tag, "!") && !strings.HasPrefix(n.Tag, "!!") {
		return c.call(n)
	}
	switch n.Kind {
	case yaml.ScalarNode:
		var v any
		if err := n.Decode(&v); err != nil {
			return nil, false, err
		}
		return v, true, nil
	case yaml.SequenceNode:
		list := []any{}
		for _, e := range n.Content {
			v, ok, err := c.value(e)
			if err != nil {
				return nil, false, err
			}
			if ok {
				list = append(list, v)
			}
		}
		return list, true, nil
	case yaml.MappingNode:
		object := map[string]any{}
		for name, e := range fields(n) {
			v, ok, err := c.value(e)
			if err != nil {
				return nil, false, fmt.Errorf("%s: %w", name, err)
			}
			if ok {
				object[name] = v
			}
		}
		return object, true, nil
	}
	return nil, false, fmt.Errorf("line %d: CloudFormation takes no YAML aliases", n.Line)
}

// call works an intrinsic function out.
func (c *template) call(n *yaml.Node) (any, bool, error) {
	switch n.Tag {
	case "!Ref":
		if n.Value == "AWS::NoValue" {
			return nil, false, nil
		}
		v, err := c.ref(n.Value)
		return v, true, err
	case "!GetAtt":
		v, err := c.attribute(n.Value)
		return v, true, err
	case "!Sub":
		v, err := c.substitute(n)
		return v, true, err
	case "!If":
		met, known := c.conditions[n.Content[0].Value]
		if !known {
			return nil, false, fmt.Errorf("line %d: no condition %s", n.Line, n.Content[0].Value)
		}
		if met {
			return c.value(n.Content[1])
		}
		return c.value(n.Content[2])
	case "!Equals":
		a, _, err := c.value(n.Content[0])
		if err != nil {
			return nil, false, err
		}
		b, _, err := c.value(n.Content[1])
		return fmt.Sprint(a) == fmt.Sprint(b), true, err
	case "!Join":
		list, _, err := c.value(n.Content[1])
		if err != nil {
			return nil, false, err
		}
		var parts []string
		for _, e := range list.([]any) {
			parts = append(parts, fmt.Sprint(e))
		}
		return strings.Join(parts, n.Content[0].Value), true, nil
	case "!Not":
		v, _, err := c.value(n.Content[0])
		if err != nil {
			return nil, false, err
		}
		return !v.(bool), true, nil
	}
	return nil, false, fmt.Errorf("line %d: function %s is not known here", n.Line, n.Tag)
}

func (c *template) substitute(n *yaml.Node) (string, error) {
	text, own := n.Value, map[string]*yaml.Node{}
	if n.Kind == yaml.SequenceNode {
		text, own = n.Content[0].Value, fields(n.Content[1])
	}
	var failed error
	result := regexp.MustCompile(`\$\{[^}]*\}`).ReplaceAllStringFunc(text, func(found string) string {
		name := found[2 : len(found)-1]
		var v any
		var err error
		switch {
		case own[name] != nil:
			v, _, err = c.value(own[name])
		case strings.Contains(name, "."):
			v, err = c.attribute(name)
		default:
			v, err = c.ref(name)
		}
		if err != nil {
			failed = err
		}
		return fmt.Sprint(v)
	})
	return result, failed
}

// ref is a parameter's value, or what CloudFormation calls a resource by.
func (c *template) ref(name string) (any, error) {
	if v, ok := c.parameters[name]; ok {
		return v, nil
	}
	r, err := c.resource(name)
	if err != nil {
		return nil, err
	}
	switch kind := child(r, "Type").Value; kind {
	case "AWS::SQS::Queue":
		name, err := c.queueName(r)
		return queueURL(name), err
	case "AWS::IAM::ManagedPolicy":
		return policyARN("stack-" + name), nil
	default:
		return nil, fmt.Errorf("Ref of %s %s is not known here", kind, name)
	}
}

func (c *template) attribute(name string) (any, error) {
	logical, attribute, _ := strings.Cut(name, ".")
	r, err := c.resource(logical)
	if err != nil {
		return nil, err
	}
	switch kind := child(r, "Type").Value + "." + attribute; kind {
	case "AWS::SQS::Queue.Arn":
		name, err := c.queueName(r)
		return arn("sqs", name), err
	case "AWS::SQS::Queue.QueueName":
		return c.queueName(r)
	case "AWS::Events::Rule.Arn":
		return arn("events", "rule/stack-"+logical), nil
	case "AWS::IAM::Role.Arn":
		return roleARN("stack-" + logical), nil
	default:
		return nil, fmt.Errorf("attribute %s is not known here", kind)
	}
}

// resource is one that is there under the conditions.
func (c *template) resource(name string) (*yaml.Node, error) {
	r := child(child(c.root, "Resources"), name)
	if r == nil {
		return nil, fmt.Errorf("no resource or parameter %s", name)
	}
	if condition := child(r, "Condition"); condition != nil && !c.conditions[condition.Value] {
		return nil, fmt.Errorf("resource %s is referred to where it is not made", name)
	}
	return r, nil
}

func (c *template) queueName(r *yaml.Node) (string, error) {
	v, _, err := c.value(child(child(r, "Properties"), "QueueName"))
	return fmt.Sprint(v), err
}

// A resource that is made, with its properties worked out.
type made struct {
	logical, kind string
	properties    map[string]any
}

// resources works out everything that is made.
func (c *template) resources(t *testing.T) []made {
	t.Helper()
	var all []made
	for name := range fields(child(c.root, "Resources")) {
		r, err := c.resource(name)
		if err != nil {
			continue // not under these conditions
		}
		v, _, err := c.value(child(r, "Properties"))
		if err != nil {
			t.Fatalf("resource %s: %v", name, err)
		}
		all = append(all, made{name, child(r, "Type").Value, v.(map[string]any)})
	}
	return all
}
