package chart

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	appsv1 "k8s.io/api/apps/v1"
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

// Everybody may connect to the port of metrics and health, or those that the value names.
func TestWhoMayConnect(t *testing.T) {
	monitoring := map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": "monitoring"}}}
	for _, from := range [][]any{{}, {monitoring}} {
		objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values("both", map[string]any{"imds.hostNetwork": false, "networkPolicy.from": from})})
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
			in := policy.Spec.Ingress
			if len(in) != 1 || len(in[0].Ports) != 1 || in[0].Ports[0].Port.StrVal != "http" || len(in[0].From) != len(from) {
				t.Errorf("%s, from %v, lets in %+v", o.GetName(), from, in)
			} else if len(from) > 0 && in[0].From[0].NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] != "monitoring" {
				t.Errorf("%s lets in %+v, want %v", o.GetName(), in[0].From, from)
			}
		}
		if policies != 2 {
			t.Errorf("%d network policies, want 2", policies)
		}
	}
}

// Pods are notified, and the way to them is open, only if notices are switched on, and then for the
// Deployment that drains alone.
func TestNoticesOpenTheWayToPods(t *testing.T) {
	for _, tt := range []struct {
		change   map[string]any
		notifies bool
		opens    []string
	}{
		{nil, false, nil},
		{map[string]any{"flags.workloadNotices": true}, true, []string{"all namespaces"}},
		{map[string]any{"flags.workloadNotices": true}, true, []string{"all namespaces"}},
		{map[string]any{"flags.workloadNotices": true, "flags.noticeNetworks": []any{"10.0.0.0/8"}}, true, []string{"all namespaces", "10.0.0.0/8"}},
		{map[string]any{"flags.noticeNetworks": []any{"10.0.0.0/8"}}, false, nil},
	} {
		for mode, drains := range map[string]string{"imds": "drain", "queue": "queue", "both": "queue"} {
			change := map[string]any{"imds.hostNetwork": false}
			for k, v := range tt.change {
				change[k] = v
			}
			objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values(mode, change)})
			if err != nil {
				t.Fatal(err)
			}
			opens, notifies := map[string][]string{}, false
			for _, o := range objects {
				switch o.GetKind() {
				case "NetworkPolicy":
					var policy networkingv1.NetworkPolicy
					if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &policy, true); err != nil {
						t.Fatal(err)
					}
					component := policy.Spec.PodSelector.MatchLabels["app.kubernetes.io/component"]
					for _, rule := range policy.Spec.Egress {
						for _, to := range rule.To {
							switch {
							case to.IPBlock != nil:
								opens[component] = append(opens[component], to.IPBlock.CIDR)
							case to.NamespaceSelector != nil && to.NamespaceSelector.Size() == 0 && to.PodSelector == nil:
								opens[component] = append(opens[component], "all namespaces")
							}
							if len(rule.Ports) != 1 || rule.Ports[0].Port != nil {
								t.Errorf("%v, %s: ports %v, want any", tt.change, mode, rule.Ports)
							}
						}
					}
				case "Deployment":
					var deployment appsv1.Deployment
					if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &deployment); err != nil {
						t.Fatal(err)
					}
					notifies = slices.Contains(deployment.Spec.Template.Spec.Containers[0].Args, "--workload-notices=true")
				}
			}
			want := map[string][]string{}
			if tt.opens != nil {
				want[drains] = tt.opens
			}
			if diff := cmp.Diff(want, opens); diff != "" || notifies != tt.notifies {
				t.Errorf("%v, %s: notifies %t, want %t; opens (-want +got):\n%s", tt.change, mode, notifies, tt.notifies, diff)
			}
		}
	}
}
