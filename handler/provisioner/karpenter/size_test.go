package karpenter

import (
	"slices"
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
			if diff := cmp.Diff(tt.want, untypedResources(requests(tt.need))); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestZones(t *testing.T) {
	free := func() *corev1.Pod { return pod(container("1", "")) }
	selects := func(zone string) *corev1.Pod {
		p := free()
		p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: zone}
		return p
	}
	volume := func() *corev1.Pod {
		p := free()
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		return p
	}
	// requires has one term per list of zones; an empty list is a term on another key.
	requires := func(terms ...[]string) *corev1.Pod {
		p := free()
		required := &corev1.NodeSelector{}
		for _, zones := range terms {
			e := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: zones}
			if len(zones) == 0 {
				e = corev1.NodeSelectorRequirement{Key: "team", Operator: corev1.NodeSelectorOpExists}
			}
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{e}})
		}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required}}
		return p
	}
	for name, tt := range map[string]struct {
		moving []*corev1.Pod
		want   []string
	}{
		"no pods":               {nil, nil},
		"free pods":             {[]*corev1.Pod{free(), free()}, nil},
		"one selects":           {[]*corev1.Pod{free(), selects("a")}, []string{"a"}},
		"all agree":             {[]*corev1.Pod{selects("a"), requires([]string{"b", "a"})}, []string{"a"}},
		"they differ":           {[]*corev1.Pod{selects("a"), selects("b")}, nil},
		"volume":                {[]*corev1.Pod{free(), volume()}, []string{"here"}},
		"several":               {[]*corev1.Pod{requires([]string{"c", "a"})}, []string{"a", "c"}},
		"any of the terms":      {[]*corev1.Pod{requires([]string{"a"}, []string{"b"})}, []string{"a", "b"}},
		"a term leaves it open": {[]*corev1.Pod{requires([]string{"a"}, nil)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := zones(provisioner.Need{Moving: tt.moving}, "here"); !slices.Equal(got, tt.want) {
				t.Errorf("zones() = %q, want %q", got, tt.want)
			}
		})
	}
}
