package stories

import (
	"fmt"
	"maps"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/e2e/controlplane"
)

// The horizontal pod autoscaler scales a Deployment up and down while its pods are surged
// and their replacement pods have no room, and once more when the drain is over. Never are there
// fewer ready pods than it wishes for, and no surged pod is left over.
func TestAutoscalerInPlay(t *testing.T) {
	s := newStory(t, controlplane.Options{Audit: true})
	node := s.bare("node", 1, 8)[0]
	pods := s.service("web", 4, surge(8, nil))
	load := s.scaledByLoad("web", 4)
	d, queue := s.drill()
	seen := s.watchSurge("default", "web")

	interrupt(queue, node.Name, 110*time.Second)
	s.waitSurged(4)
	load(6)
	load(3) // one of the surged is too many now, and goes
	if _, ready := seen.worst(); ready < 3 {
		t.Errorf("only %d pods were ready at some moment, want never less than 3", ready)
	}
	s.bare("spare", 1, 8)
	s.wantResults(d, map[string]result{node.Name: {graceful: 4}})
	evicted := uids(pods)
	for _, l := range d.Lines("surged pod ended, as its ReplicaSet would have") { // the one too many
		maps.DeleteFunc(evicted, func(_ types.UID, name string) bool { return l["pod"] == "default/"+name })
	}
	if len(evicted) < 3 {
		t.Errorf("%d surged pods were ended, want one at most", 4-len(evicted))
	}
	s.wantEachOnce(evicted)
	s.wantNoneSurged()
	s.wantPods("default", "web", 3)
	load(5)
	s.wantPods("default", "web", 5)
	if _, ready := seen.worst(); ready < 3 {
		t.Errorf("only %d pods were ready at some moment, want never less than 3", ready)
	}
}

// loads is what the autoscaler reads: an external metric, which a custom resource of the
// shape of that API serves as well as a server of its own would.
// https://github.com/kubernetes/metrics/blob/v0.36.3/pkg/apis/external_metrics/v1beta1/types.go
var loads = schema.GroupVersionResource{Group: "external.metrics.k8s.io", Version: "v1beta1", Resource: "loads"}

// scaledByLoad has the service scaled by its load, one pod for each unit. What it returns sets
// the load, and waits until the autoscaler has followed.
func (s *story) scaledByLoad(service string, load int) func(load int) {
	s.Helper()
	_, err := s.cluster.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
		Create(s.ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{
				"name":        loads.GroupResource().String(),
				"annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, for a test"},
			},
			"spec": map[string]any{
				"group": loads.Group, "scope": "Namespaced",
				"names": map[string]any{"plural": loads.Resource, "singular": "load", "kind": "ExternalMetricValue", "listKind": "ExternalMetricValueList"},
				"versions": []any{map[string]any{"name": loads.Version, "served": true, "storage": true, "schema": map[string]any{
					"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
				}}},
			},
		}}, metav1.CreateOptions{})
	s.must(err)
	values := s.cluster.Dynamic.Resource(loads).Namespace("default")
	s.eventually("the metric", func() bool {
		_, err := values.Create(s.ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": loads.GroupVersion().String(), "kind": "ExternalMetricValue", "metadata": map[string]any{"name": "all"},
			"metricName": loads.Resource, "timestamp": time.Now().UTC().Format(time.RFC3339), "value": fmt.Sprint(load),
		}}, metav1.CreateOptions{})
		return err == nil
	})
	min, none := int32(1), int32(0)
	_, err = s.cluster.Client.AutoscalingV2().HorizontalPodAutoscalers("default").Create(s.ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: service},
			MinReplicas:    &min, MaxReplicas: 10,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: loads.Resource},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(1, resource.DecimalSI)},
			}}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &none}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	return func(load int) {
		s.Helper()
		_, err := values.Patch(s.ctx, "all", types.MergePatchType, fmt.Appendf(nil, `{"value":"%d"}`, load), metav1.PatchOptions{})
		s.must(err)
		s.eventually(fmt.Sprint("scale of ", load), func() bool {
			d, err := s.cluster.Client.AppsV1().Deployments("default").Get(s.ctx, service, metav1.GetOptions{})
			s.must(err)
			return d.Spec.Replicas != nil && *d.Spec.Replicas == int32(load)
		})
	}
}
