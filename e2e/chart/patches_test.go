package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Each mode has a policy for each kind of object that its accounts may patch, and each policy
// names the accounts that may. What they refuse, a story tries.
func TestPatchPolicies(t *testing.T) {
	const imds, drain, queue = "'system:serviceaccount:spot-handler:spot-handler-imds'", "'system:serviceaccount:spot-handler:spot-handler-drain'", "'system:serviceaccount:spot-handler:spot-handler-queue'"
	all := func(nodes, rest string) map[string]string {
		return map[string]string{"nodes": nodes, "nodes/status": rest, "pods": rest, "pods/status": rest, "nodeclaims": rest, "leases": rest}
	}
	for _, tt := range []struct {
		name, mode string
		change     map[string]any
		want       map[string]string
	}{
		{"imds", "imds", nil, all(drain+", "+imds, drain)},
		{"both", "both", nil, all(queue+", "+imds, queue)},
		{"queue", "queue", nil, all(queue, queue)},
		{"no Karpenter", "queue", map[string]any{"flags.provisioner": "none"},
			map[string]string{"nodes": queue, "nodes/status": queue, "pods": queue, "pods/status": queue, "leases": queue}},
		{"switched off", "both", map[string]any{"patchPolicies": false}, map[string]string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values(tt.mode, tt.change)})
			if err != nil {
				t.Fatal(err)
			}
			got, bound := map[string]string{}, []string{}
			for _, o := range objects {
				switch {
				case !strings.Contains(o.GetName(), "-patches-"):
				case o.GetKind() == "ValidatingAdmissionPolicyBinding":
					bound = append(bound, o.GetName())
				default:
					var p admissionregistrationv1.ValidatingAdmissionPolicy
					if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &p, true); err != nil {
						t.Fatal(err)
					}
					users := strings.TrimSuffix(strings.TrimPrefix(p.Spec.MatchConditions[0].Expression, "request.userInfo.username in ["), "]")
					got[p.Spec.MatchConstraints.ResourceRules[0].Resources[0]] = users
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
