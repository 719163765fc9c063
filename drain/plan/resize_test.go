package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Anybody who may resize pods can ask for any amount. If the node can never give it, what it gave counts.
func TestInfeasibleResizeDoesNotCount(t *testing.T) {
	cpu := func(text string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(text)}
	}
	actual := []corev1.ContainerStatus{{Name: "main", AllocatedResources: cpu("500m"), Resources: &corev1.ResourceRequirements{Requests: cpu("500m")}}}
	for name, tt := range map[string]struct {
		reason string
		status []corev1.ContainerStatus
		want   string
	}{
		"not resized":           {"", actual, "500"},
		"infeasible":            {"Infeasible", actual, "500m"},
		"only what is allotted": {"Infeasible", []corev1.ContainerStatus{{Name: "main", AllocatedResources: cpu("500m")}}, "500m"},
		"nothing is known":      {"Infeasible", nil, "0"},
		"deferred":              {"Deferred", actual, "500"}, // as the scheduler counts it
	} {
		pod := &corev1.Pod{
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: cpu("500")}}}},
			Status: corev1.PodStatus{ContainerStatuses: tt.status},
		}
		if tt.reason != "" {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: tt.reason}}
		}
		got := resourcehelper.PodRequests(Lean(pod), resourcehelper.PodResourcesOptions{})[corev1.ResourceCPU]
		if got.String() != tt.want {
			t.Errorf("%s: requests %s of CPU, want %s", name, got.String(), tt.want)
		}
		if before := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU]; before.String() != "500" {
			t.Errorf("%s: the pod itself has changed", name)
		}
	}
}
