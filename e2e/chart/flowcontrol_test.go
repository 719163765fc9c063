package chart

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Leases and patches of Nodes go to levels of their own, for those accounts that make them, and
// nothing else does.
func TestFlowSchemas(t *testing.T) {
	type schema struct {
		Level, Namespace string
		Accounts, Verbs  []string
	}
	nodes := func(accounts ...string) schema {
		return schema{Level: "workload-high", Accounts: accounts, Verbs: []string{"nodes patch", "nodes get"}}
	}
	leases := func(namespace, account string) schema {
		return schema{"leader-election", namespace, []string{account}, []string{"leases get", "leases create", "leases update"}}
	}
	for _, tt := range []struct {
		name, mode string
		change     map[string]any
		want       map[string]schema
	}{
		{"imds", "imds", nil, map[string]schema{
			"spot-handler-nodes":  nodes("spot-handler-drain", "spot-handler-imds"),
			"spot-handler-leases": leases("spot-handler", "spot-handler-drain"),
		}},
		{"both", "both", nil, map[string]schema{
			"spot-handler-nodes":  nodes("spot-handler-imds", "spot-handler-queue"),
			"spot-handler-leases": leases("spot-handler", "spot-handler-queue"),
		}},
		{"another account", "queue", map[string]any{"controller.serviceAccount.name": "mine"}, map[string]schema{
			"spot-handler-nodes":  nodes("mine"),
			"spot-handler-leases": leases("spot-handler", "mine"),
		}},
		{"switched off", "both", map[string]any{"flowSchemas": false}, map[string]schema{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values(tt.mode, tt.change)})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]schema{}
			for _, o := range objects {
				if o.GetKind() != "FlowSchema" {
					continue
				}
				var f flowcontrolv1.FlowSchema
				if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &f, true); err != nil {
					t.Fatal(err)
				}
				one := schema{Level: f.Spec.PriorityLevelConfiguration.Name}
				for _, rule := range f.Spec.Rules {
					for _, subject := range rule.Subjects {
						one.Accounts = append(one.Accounts, subject.ServiceAccount.Name)
					}
					for _, r := range rule.ResourceRules {
						if !r.ClusterScope {
							one.Namespace = r.Namespaces[0]
						}
						for _, resource := range r.Resources {
							for _, verb := range r.Verbs {
								one.Verbs = append(one.Verbs, resource+" "+verb)
							}
						}
					}
				}
				slices.Sort(one.Accounts)
				got[f.Name] = one
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
