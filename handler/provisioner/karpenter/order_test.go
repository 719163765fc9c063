package karpenter

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/handler/interruption"
)

var update = flag.Bool("update", false, "write testdata/nodeclaim.json")

func newOrder(t *testing.T, change ...func(*unstructured.Unstructured)) claimOrder {
	t.Helper()
	lost := replacedNode{rec: record(), node: interruptedNode(), claim: decodeClaim(sourceNodeClaim())}
	return claimOrder{candidate: candidate{pool: pool(t, change...)}, lost: lost, fit: fit{need: need()}, ask: sumRequests(need())}
}

func built(t *testing.T, o claimOrder) *unstructured.Unstructured {
	t.Helper()
	claim, err := o.build()
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

func TestBuild(t *testing.T) {
	b, err := json.MarshalIndent(built(t, newOrder(t)), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got := string(b) + "\n"
	if *update {
		if err := os.WriteFile("testdata/nodeclaim.json", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/nodeclaim.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("claim (-want +got):\n%s", diff)
	}
}

// The pool is shared by a whole burst.
func TestBuildLeavesThePoolAlone(t *testing.T) {
	o, untouched := newOrder(t), pool(t)
	built(t, o)
	if diff := cmp.Diff(untouched.templateSpec, o.pool.templateSpec); diff != "" {
		t.Errorf("template (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(untouched.Spec, o.pool.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestBuildOfABarePool(t *testing.T) {
	o := newOrder(t, func(u *unstructured.Unstructured) {
		u.SetAnnotations(nil)
		unstructured.RemoveNestedField(u.Object, "spec", "template", "metadata")
		unstructured.RemoveNestedField(u.Object, "spec", "template", "spec", "requirements")
	})
	o.lost.claim, o.lost.node.Labels = nil, nil
	claim := built(t, o)
	want := map[string]string{
		nodePoolLabel:                    "fallback",
		"karpenter.k8s.aws/ec2nodeclass": "default",
		ReplacesLabel:                    instance,
	}
	if diff := cmp.Diff(want, claim.GetLabels()); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{nodeAnnotation: "node-1", podsAnnotation: "2"}, claim.GetAnnotations()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestRequirementsAreWhatTheSchemaTakes(t *testing.T) {
	var many []string
	for i := range 100 {
		many = append(many, `{"key":"example.com/k`+strconv.Itoa(i)+`","operator":"Exists"}`)
	}
	o := newOrder(t, requires(`[`+strings.Join(many, ",")+`]`))
	if n := len(o.requirements()); n != maxRequirements {
		t.Errorf("%d requirements, want %d", n, maxRequirements)
	}

	o = newOrder(t, requires(`[
		{"key":"kubernetes.io/hostname","operator":"Exists"},
		{"key":"karpenter.sh/initialized","operator":"Exists"},
		{"key":"sub.karpenter.sh/x","operator":"Exists"},
		{"key":"karpenter.sh/nodepool","operator":"In","values":["other"]},
		{"key":"karpenter.sh/capacity-type","operator":"In","values":["on-demand"]}]`))
	o.lost.claim = nil
	want := []requirement{
		{Key: nodePoolLabel, Operator: "In", Values: []string{"fallback"}},
		{Key: capacityTypeLabel, Operator: "In", Values: []string{"on-demand"}},
	}
	if diff := cmp.Diff(want, o.requirements()); diff != "" {
		t.Errorf("requirements (-want +got):\n%s", diff)
	}
}

func TestInstanceTypes(t *testing.T) {
	all := []string{"m5.large", "m6i.large", "c6i.large"}
	kwok := set("karpenter.kwok.sh", "spec", "template", "spec", "nodeClassRef", "group")
	for name, tt := range map[string]struct {
		change []func(*unstructured.Unstructured)
		want   []string
	}{
		"pool without shape":               {[]func(*unstructured.Unstructured){requires(`[]`)}, all},
		"pool with types":                  {[]func(*unstructured.Unstructured){requires(`[{"key":"node.kubernetes.io/instance-type","operator":"In","values":["c6i.large","m6i.large","z1.large"]}]`)}, []string{"m6i.large", "c6i.large"}},
		"pool excludes a type":             {[]func(*unstructured.Unstructured){requires(`[{"key":"node.kubernetes.io/instance-type","operator":"NotIn","values":["m5.large"]}]`)}, []string{"m6i.large", "c6i.large"}},
		"nothing in common":                {[]func(*unstructured.Unstructured){requires(`[{"key":"node.kubernetes.io/instance-type","operator":"In","values":["z1.large"]}]`)}, nil},
		"same architecture":                {[]func(*unstructured.Unstructured){requires(`[{"key":"kubernetes.io/arch","operator":"In","values":["amd64","arm64"]}]`)}, all},
		"other architecture":               {[]func(*unstructured.Unstructured){requires(`[{"key":"kubernetes.io/arch","operator":"In","values":["arm64"]}]`)}, nil},
		"shape that the types may lack":    {[]func(*unstructured.Unstructured){requires(`[{"key":"karpenter.k8s.aws/instance-family","operator":"In","values":["m6i"]}]`)}, nil},
		"least number of families":         {[]func(*unstructured.Unstructured){requires(`[{"key":"node.kubernetes.io/instance-type","operator":"Exists","minValues":2}]`)}, nil},
		"kwok launches nothing without it": {[]func(*unstructured.Unstructured){kwok, requires(`[{"key":"karpenter.kwok.sh/instance-family","operator":"In","values":["m"]}]`)}, all},
	} {
		t.Run(name, func(t *testing.T) {
			if got := newOrder(t, tt.change...).instanceTypes(); !slices.Equal(got, tt.want) {
				t.Errorf("instanceTypes() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("long", 20)
	for _, tt := range []struct{ pool, instance, want string }{
		{"spot", "i-0abc", "spot-i-0abc"},
		{"my.pool", "i-0abc", "my-pool-i-0abc-"},
		{long, "i-0abc", long[:54] + "-"},
		{"spot", "Kwok_Node", "spot-kwok-node-"},
		{"spot", "x" + strings.Repeat("-", 60), "spot-x-"},
		{"", "", ""},
		{"ä", "ö", ""},
	} {
		o := claimOrder{candidate: candidate{pool: &nodePool{}}, lost: replacedNode{rec: interruption.Record{Instance: tt.instance}}}
		o.pool.Name = tt.pool
		got := o.name()
		if !strings.HasPrefix(got, tt.want) || got != o.name() {
			t.Errorf("name(%q, %q) = %q, want prefix %q", tt.pool, tt.instance, got, tt.want)
		}
		if problems := validation.IsDNS1123Label(got); len(problems) > 0 {
			t.Errorf("name(%q, %q) = %q: %s", tt.pool, tt.instance, got, problems)
		}
		if problems := validation.IsValidLabelValue(labelValue(got + tt.instance)); len(problems) > 0 {
			t.Errorf("label value: %s", problems)
		}
	}
	if dnsLabel(long+"a") == dnsLabel(long+"b") {
		t.Error("two long names are cut to the same one")
	}
}
