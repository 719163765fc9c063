package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Each mode has a policy for each kind of object that its accounts may patch, create or delete by
// RBAC, and each policy names the accounts that may. What they refuse, a story tries.
func TestPatchPolicies(t *testing.T) {
	const imds, drain, queue = "'system:serviceaccount:spot-handler:spot-handler-imds'", "'system:serviceaccount:spot-handler:spot-handler-drain'", "'system:serviceaccount:spot-handler:spot-handler-queue'"
	with := func(nodes, rest string, more ...string) map[string]string {
		policies := map[string]string{"patches nodes": nodes}
		for _, p := range append(more, "patches nodes/status", "patches pods", "patches pods/status", "patches leases", "writes events") {
			policies[p] = rest
		}
		return policies
	}
	karpenter := []string{"patches nodeclaims", "creates nodeclaims", "deletes nodeclaims"}
	placeholders := []string{"creates pods", "writes podtemplates"}
	for _, tt := range []struct {
		name, mode string
		change     map[string]any
		want       map[string]string
	}{
		{"imds", "imds", nil, with(drain+", "+imds, drain, karpenter...)},
		{"both", "both", nil, with(queue+", "+imds, queue, karpenter...)},
		{"queue", "queue", nil, with(queue, queue, karpenter...)},
		{"no Karpenter", "queue", map[string]any{"flags.provisioner": "none"}, with(queue, queue)},
		{"placeholders", "queue", map[string]any{"flags.fallbackSelector": "a=b"}, with(queue, queue, slices.Concat(karpenter, placeholders)...)},
		{"switched off", "both", map[string]any{"patchPolicies": false}, map[string]string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values(tt.mode, tt.change)})
			if err != nil {
				t.Fatal(err)
			}
			got, bound := map[string]string{}, []string{}
			for _, o := range objects {
				does, _, _ := strings.Cut(strings.TrimPrefix(o.GetName(), "spot-handler-"), "-")
				switch {
				case !strings.HasPrefix(o.GetKind(), "ValidatingAdmission"), does == "imds":
				case o.GetKind() == "ValidatingAdmissionPolicyBinding":
					bound = append(bound, o.GetName())
				default:
					var p admissionregistrationv1.ValidatingAdmissionPolicy
					if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &p, true); err != nil {
						t.Fatal(err)
					}
					users := strings.TrimSuffix(strings.TrimPrefix(p.Spec.MatchConditions[0].Expression, "request.userInfo.username in ["), "]")
					got[does+" "+p.Spec.MatchConstraints.ResourceRules[0].Resources[0]] = users
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if slices.Sort(bound); len(slices.Compact(bound)) != len(tt.want) {
				t.Errorf("%q are bound, want all of them", bound)
			}
		})
	}
}

// remaining is what an account may write without a policy: what has no content to compare, or is
// narrowed by RBAC itself. The security policy names each.
var remaining = []string{"CREATE pods/eviction", "DELETE pods", "UPDATE configmaps", "UPDATE nodepools/finalizers"}

// Whatever an account may write by RBAC, a policy holds it to, or it is among what remains.
func TestEveryWriteIsHeld(t *testing.T) {
	operations := map[string]string{"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE", "deletecollection": "DELETE"}
	found := map[string]bool{}
	for _, mode := range Modes {
		objects := render(t, Release{Values: Values(mode, map[string]any{
			"flags.fallbackSelector": "node-lifecycle=on-demand", "flags.workloadNotices": true, "rbac.ownerReferences": true,
		})})
		held := map[string]bool{}
		for _, o := range objects {
			if o.GetKind() != "ValidatingAdmissionPolicy" || strings.Contains(o.GetName(), "-imds-own-") {
				continue
			}
			var p admissionregistrationv1.ValidatingAdmissionPolicy
			convert(t, o, &p)
			for _, rule := range p.Spec.MatchConstraints.ResourceRules {
				for _, operation := range rule.Operations {
					held[string(operation)+" "+rule.Resources[0]] = true
				}
			}
		}
		for _, component := range []string{drainers[mode], "imds"} {
			if mode == "queue" && component == "imds" {
				continue
			}
			for _, rule := range rulesOf(t, objects, workload(t, objects, component).Spec.ServiceAccountName) {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						write := operations[verb] + " " + resource
						switch {
						case slices.Contains([]string{"get", "list", "watch"}, verb), held[write]:
						case slices.Contains(remaining, write):
							found[write] = true
						default:
							t.Errorf("mode %s: %s may %s %s, and no policy says which", mode, component, verb, resource)
						}
					}
				}
			}
		}
	}
	if len(found) != len(remaining) {
		t.Errorf("%v remains, want %q", found, remaining)
	}
}

// The chart's policy knows the image that placeholders have if no other is named.
func TestPlaceholderImage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "cmd", "spot-handler", "settings.go"))
	if err != nil {
		t.Fatal(err)
	}
	for want, changes := range map[string]map[string]any{
		regexp.MustCompile(`"placeholder-image", "([^"]+)"`).FindStringSubmatch(string(text))[1]: {"flags.fallbackSelector": "a=b"},
		"registry.example.com/none:1": {"flags.fallbackSelector": "a=b", "placeholderImage": "registry.example.com/none:1"},
	} {
		held := false
		for _, o := range render(t, Release{Values: Values("imds", changes)}) {
			var p admissionregistrationv1.ValidatingAdmissionPolicy
			if convert(t, o, &p); o.GetName() == "spot-handler-creates-pods" {
				held = held || slices.ContainsFunc(p.Spec.Validations, func(v admissionregistrationv1.Validation) bool {
					return strings.Contains(v.Expression, "c.image == '"+want+"'")
				})
			}
		}
		if !held {
			t.Errorf("no policy holds placeholders to the image %s", want)
		}
	}
}

// What the security policy says that placeholders can cost is the chart's quota.
func TestPlaceholderQuota(t *testing.T) {
	hard := func(changes map[string]any) any {
		changes["flags.fallbackSelector"] = "a=b"
		for _, o := range render(t, Release{Values: Values("imds", changes)}) {
			if o.GetKind() == "ResourceQuota" && o.GetNamespace() == PlaceholderNamespace {
				return o.Object["spec"].(map[string]any)["hard"]
			}
		}
		return nil
	}
	want := map[string]any{"pods": "1000", "requests.cpu": "1000", "requests.memory": "4Ti"}
	if diff := cmp.Diff(any(want), hard(map[string]any{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := hard(map[string]any{"placeholderQuota": nil}); got != nil {
		t.Errorf("a quota of %v, want none", got)
	}
	for page, words := range map[string]string{
		"../../.github/SECURITY.md":        "1,000 pods, 1,000 CPUs and 4 TiB of memory",
		"../../deploy/docs/replacement.md": "1,000 pods with 1,000 CPUs and 4 TiB of memory",
	} {
		text, err := os.ReadFile(page)
		if err != nil || !strings.Contains(strings.Join(strings.Fields(string(text)), " "), words) {
			t.Errorf("%s does not say %q: %v", page, words, err)
		}
	}
}

// The security policy names every kind of object that an account may write.
func TestSecurityNamesEveryWrite(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", ".github", "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## What the daemon may do\n")
	section, _, _ = strings.Cut(section, "\n## ")
	words := map[string]string{
		"nodes": "| Node |", "nodes/status": "the condition `spot-handler/Interrupted`", "pods": "| placeholder pod |", "pods/status": "the condition `DisruptionTarget`",
		"pods/eviction": "evictions", "events": "| Event |", "leases": "| Lease", "configmaps": "ConfigMap", "nodeclaims": "| NodeClaim |",
		"nodepools/finalizers": "`nodepools/finalizers`", "podtemplates": "| PodTemplate |",
	}
	objects := render(t, Release{Values: Values("both", map[string]any{"flags.fallbackSelector": "a=b", "flags.workloadNotices": true, "rbac.ownerReferences": true})})
	for _, rule := range rulesOf(t, objects, workload(t, objects, "queue").Spec.ServiceAccountName) {
		reads := slices.DeleteFunc(slices.Clone(rule.Verbs), func(v string) bool { return v == "get" || v == "list" || v == "watch" })
		for _, resource := range rule.Resources {
			if word, ok := words[resource]; len(reads) > 0 && (!ok || !strings.Contains(section, word)) {
				t.Errorf("the account may %q %s, and SECURITY.md does not name it", reads, resource)
			}
		}
	}
}
