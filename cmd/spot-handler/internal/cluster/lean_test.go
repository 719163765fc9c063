package cluster

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestOnlyZoneOfVolumes(t *testing.T) {
	in := func(key string, zones ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: zones}}}
	}
	not := in(corev1.LabelTopologyZone, "a")
	not.MatchExpressions[0].Operator = corev1.NodeSelectorOpNotIn
	for name, tt := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  string
	}{
		"anywhere":            {nil, ""},
		"not in that zone":    {[]corev1.NodeSelectorTerm{not}, ""},
		"in no zone":          {[]corev1.NodeSelectorTerm{in(corev1.LabelTopologyZone)}, ""},
		"or in no zone":       {[]corev1.NodeSelectorTerm{in(corev1.LabelTopologyZone, "a"), in(corev1.LabelTopologyZone)}, ""},
		"a team's":            {[]corev1.NodeSelectorTerm{in("team", "a")}, ""},
		"one zone":            {[]corev1.NodeSelectorTerm{in(corev1.LabelTopologyZone, "a")}, "a"},
		"one zone, as of EBS": {[]corev1.NodeSelectorTerm{in("topology.ebs.csi.aws.com/zone", "a")}, "a"},
		"two zones":           {[]corev1.NodeSelectorTerm{in(corev1.LabelTopologyZone, "a", "b")}, ""},
		"either":              {[]corev1.NodeSelectorTerm{in(corev1.LabelTopologyZone, "a"), in(corev1.LabelTopologyZone, "b")}, ""},
		"or any":              {[]corev1.NodeSelectorTerm{in(corev1.LabelTopologyZone, "a"), in("team", "web")}, ""},
	} {
		v := &corev1.PersistentVolume{}
		if tt.terms != nil {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: tt.terms}}
		}
		if got := onlyZone(v); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	v := &corev1.PersistentVolume{}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{}
	if got := onlyZone(v); got != "" {
		t.Errorf("%q of an affinity that requires nothing", got)
	}
}

// Pods of one controller share what is equal, and nothing else: their owner can claim any controller.
func TestAlike(t *testing.T) {
	of := func(uid types.UID, app, cpu string) *corev1.Pod {
		p := pod("shop", app, map[string]string{"app": app})
		p.OwnerReferences = []metav1.OwnerReference{{UID: uid}}
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}
		return &p
	}
	others := alike{}
	first := others.share(of("one", "web", "1"))
	for name, tt := range map[string]struct {
		pod    *corev1.Pod
		shared bool
	}{
		"equal":      {of("one", "web", "1"), true},
		"larger":     {of("one", "web", "2"), false},
		"of another": {of("two", "web", "1"), false},
	} {
		want := tt.pod.DeepCopy()
		got := others.share(tt.pod)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
		if shared := &got.Spec.Containers[0] == &first.Spec.Containers[0]; shared != tt.shared {
			t.Errorf("%s: shared: %t, want %t", name, shared, tt.shared)
		}
		sameLabels := reflect.ValueOf(got.Labels).Pointer() == reflect.ValueOf(first.Labels).Pointer()
		if want := tt.pod.OwnerReferences[0].UID == "one"; sameLabels != want {
			t.Errorf("%s: labels shared: %t, want %t", name, sameLabels, want)
		}
	}
	if others.share(nil) != nil {
		t.Error("a pod that has finished is kept")
	}
}
