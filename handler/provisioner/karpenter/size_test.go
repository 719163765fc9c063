package karpenter

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"spot-handler/handler/provisioner"
)

func TestRequests(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container("100m", "")
	sidecar.RestartPolicy = &always
	gpu := container("1", "")
	gpu.Resources.Requests["nvidia.com/gpu"] = resource.MustParse("2")

	withInit := pod(container("200m", "100Mi"))
	withInit.Spec.InitContainers = []corev1.Container{container("1", "10Mi")}
	withSidecar := pod(container("200m", "100Mi"))
	withSidecar.Spec.InitContainers = []corev1.Container{sidecar}
	withOverhead := pod(container("200m", ""))
	withOverhead.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")}

	for name, tt := range map[string]struct {
		need provisioner.Need
		want map[string]any
	}{
		"nothing":               {provisioner.Need{}, map[string]any{"pods": "0"}},
		"best effort":           {provisioner.Need{Moving: []*corev1.Pod{pod(container("", ""))}}, map[string]any{"pods": "1"}},
		"moving and daemons":    {need(), map[string]any{"cpu": "850m", "memory": "1344Mi", "pods": "3"}},
		"largest init":          {provisioner.Need{Moving: []*corev1.Pod{withInit}}, map[string]any{"cpu": "1", "memory": "100Mi", "pods": "1"}},
		"sidecar adds":          {provisioner.Need{Moving: []*corev1.Pod{withSidecar}}, map[string]any{"cpu": "300m", "memory": "100Mi", "pods": "1"}},
		"overhead":              {provisioner.Need{Moving: []*corev1.Pod{withOverhead}}, map[string]any{"cpu": "250m", "pods": "1"}},
		"extended":              {provisioner.Need{Moving: []*corev1.Pod{pod(gpu), pod(gpu)}}, map[string]any{"cpu": "2", "nvidia.com/gpu": "4", "pods": "2"}},
		"explicit zero is none": {provisioner.Need{Moving: []*corev1.Pod{pod(container("0", "1Gi"))}}, map[string]any{"memory": "1Gi", "pods": "1"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]any{}
			for name, q := range sumRequests(tt.need) {
				got[string(name)] = q.String()
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}
