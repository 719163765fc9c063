package chart

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The pods reach names, the API server and AWS, and the agent of EKS Pod Identity, in
// clusters of any network plugin. Addresses would not do: Cilium takes those of a node, such
// as the agent's, for the host, which no ipBlock matches.
func TestEgressIsByPortAlone(t *testing.T) {
	objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values("both", map[string]any{"imds.hostNetwork": false})})
	if err != nil {
		t.Fatal(err)
	}
	policies := 0
	for _, o := range objects {
		if o.GetKind() != "NetworkPolicy" {
			continue
		}
		policies++
		var policy networkingv1.NetworkPolicy
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &policy, true); err != nil {
			t.Fatal(err)
		}
		open := map[int32]bool{}
		for _, rule := range policy.Spec.Egress {
			for _, port := range rule.Ports {
				open[port.Port.IntVal] = open[port.Port.IntVal] || len(rule.To) == 0
			}
		}
		for _, port := range []int32{53, 80, 443, 6443} {
			if !open[port] {
				t.Errorf("%s does not open port %d to every address", o.GetName(), port)
			}
		}
	}
	if policies != 2 {
		t.Errorf("%d network policies, want 2", policies)
	}
}
