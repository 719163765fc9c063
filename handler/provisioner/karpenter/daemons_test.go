package karpenter

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// daemonSet asks for some CPUs on nodes of the capacity type.
func daemonSet(name, cpu, capacityType string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": map[string]any{"template": map[string]any{
		"spec": map[string]any{
			"nodeSelector": map[string]any{capacityTypeLabel: capacityType},
			"tolerations":  []any{map[string]any{"operator": "Exists"}},
			"containers":   []any{map[string]any{"name": "main", "resources": map[string]any{"requests": map[string]any{"cpu": cpu}}}},
		},
	}}}}
	u.SetNamespace("kube-system")
	u.SetName(name)
	return u
}

// The new node runs the DaemonSets that fit it, and not those that do not.
func TestSizedForTheDaemonSetsThatFit(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		here := ofDaemonSet(pod(container("100m", ""))) // as it is, whatever its template says
		here.Namespace = "kube-system"
		c := newCluster(t, Options{}, sourcePool(), fallbackPool(t), sourceNodeClaim(),
			daemonSet("agent", "4", "on-demand"), daemonSet("for-on-demand", "200m", "on-demand"), daemonSet("for-spot", "3", "spot"))
		n := need()
		n.Daemons = []*corev1.Pod{here}
		if _, err := c.p.Request(t.Context(), interruptedNode(), record(), n); err != nil {
			t.Fatal(err)
		}
		if cpu, _, _ := unstructured.NestedString(c.now().Object, "spec", "resources", "requests", "cpu"); cpu != "1050m" {
			t.Errorf("the claim asks for %s of cpu, want 1050m: 750m, 100m and 200m", cpu)
		}
	})
	bubble(t, "forbidden", func(t *testing.T) {
		c, rec := newCluster(t, Options{}), record()
		c.PrependReactor("list", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(daemonSetResource.GroupResource(), "", errors.New("no RBAC"))
		})
		c.request(&rec)
		if cpu, _, _ := unstructured.NestedString(c.now().Object, "spec", "resources", "requests", "cpu"); cpu != "850m" {
			t.Errorf("the claim asks for %s of cpu, want 850m, with the interrupted node's DaemonSets", cpu)
		}
		if strings.Count(c.log.String(), "forbids us to list DaemonSets") != 1 {
			t.Errorf("not said once:\n%s", c.log.String())
		}
	})
	bubble(t, "not answered", func(t *testing.T) {
		c := newCluster(t, Options{})
		c.PrependReactor("list", "daemonsets", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewInternalError(errors.New("etcd has no leader"))
		})
		if r, err := c.p.Request(t.Context(), interruptedNode(), record(), need()); err == nil {
			t.Errorf("replacement %+v, want an error, so that it's tried again", r)
		}
	})
}
