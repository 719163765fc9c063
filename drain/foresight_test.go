package drain

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Whoever looks at a whole cluster lists once what a drain looks up by namespace. A list that
// fails is told, and the others count.
func TestReadSurroundings(t *testing.T) {
	object := func(namespace, name string, spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": namespace, "name": name}, "spec": spec}}
	}
	lists := map[string][]*unstructured.Unstructured{
		"persistentvolumeclaims": {object("shop", "disk", map[string]any{"accessModes": []any{"ReadWriteOnce"}}), object("shop", "share", map[string]any{"accessModes": []any{"ReadWriteMany"}})},
		"daemonsets":             {object("shop", "agent", map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}})},
		"replicasets":            nil,
	}
	var s Situation
	err := s.ReadSurroundings(func(resource schema.GroupVersionResource, _ string, use func(*unstructured.Unstructured)) error {
		list, ok := lists[resource.Resource]
		if !ok {
			return errors.New("forbidden: " + resource.Resource)
		}
		for _, u := range list {
			use(u)
		}
		return nil
	})
	if err == nil || err.Error() != "forbidden: resourcequotas" {
		t.Errorf("%v, want what was forbidden and nothing else", err)
	}
	shared, known := s.Shared[types.NamespacedName{Namespace: "shop", Name: "disk"}]
	if !s.Shared[types.NamespacedName{Namespace: "shop", Name: "share"}] || shared || !known {
		t.Errorf("shared: %v", s.Shared)
	}
	if a := s.Surroundings["shop"].adopters; len(a) != 1 || !a[0].selector.Matches(labels.Set{"app": "web"}) || len(s.Surroundings) != 1 {
		t.Errorf("surroundings: %+v", s.Surroundings)
	}
}
