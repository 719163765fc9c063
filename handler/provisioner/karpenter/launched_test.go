package karpenter

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestLaunchedButNoNode(t *testing.T) {
	claim := func(name string, status map[string]any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "status": status}}
		u.SetName(name)
		return u
	}
	bubble(t, "", func(t *testing.T) {
		c := newCluster(t, Options{},
			claim("new", map[string]any{}),
			claim("boots", map[string]any{"providerID": "aws:///eu-west-1a/i-00000001"}),
			claim("registered", map[string]any{"providerID": "aws:///eu-west-1a/i-00000002", "nodeName": "node"}),
		)
		got, err := Launched(t.Context(), c)
		if diff := cmp.Diff(map[string]bool{"i-00000001": true}, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
	})
}
