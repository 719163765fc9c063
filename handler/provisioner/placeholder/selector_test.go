package placeholder

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestSelector(t *testing.T) {
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	notIn := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpNotIn, Values: values}
	}
	term := func(rs ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: rs}
	}
	required := func(terms ...corev1.NodeSelectorTerm) corev1.PodSpec {
		return corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}}
	}
	volume := corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}}
	elsewhere := volume
	elsewhere.NodeSelector = map[string]string{corev1.LabelTopologyZone: "zone-b"}
	away := required(term(in(corev1.LabelTopologyZone, "zone-b")))
	away.Volumes = volume.Volumes
	without := corev1.NodeSelectorRequirement{Key: "life", Operator: corev1.NodeSelectorOpDoesNotExist}
	smaller := corev1.NodeSelectorRequirement{Key: "size", Operator: corev1.NodeSelectorOpLt, Values: []string{"6"}}
	scratch := corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}
	fallback := in("life", "od")

	for _, tt := range []struct {
		name, selector string
		pod            corev1.PodSpec
		want           []corev1.NodeSelectorTerm
	}{
		{"any pod", "life=od", corev1.PodSpec{}, []corev1.NodeSelectorTerm{term(fallback)}},
		{
			"all operators", "a in (y,x),b notin (z),c,!d,e!=f,g>5,h<6", corev1.PodSpec{},
			[]corev1.NodeSelectorTerm{term(in("a", "x", "y"), notIn("b", "z"),
				corev1.NodeSelectorRequirement{Key: "c", Operator: corev1.NodeSelectorOpExists},
				corev1.NodeSelectorRequirement{Key: "d", Operator: corev1.NodeSelectorOpDoesNotExist},
				notIn("e", "f"),
				corev1.NodeSelectorRequirement{Key: "g", Operator: corev1.NodeSelectorOpGt, Values: []string{"5"}},
				corev1.NodeSelectorRequirement{Key: "h", Operator: corev1.NodeSelectorOpLt, Values: []string{"6"}})},
		},
		{"node selector that agrees", "life=od", corev1.PodSpec{NodeSelector: map[string]string{"life": "od", "arch": "arm"}}, []corev1.NodeSelectorTerm{term(fallback)}},
		{"node selector that excludes", "life=od", corev1.PodSpec{NodeSelector: map[string]string{"life": "spot"}}, nil},
		{"node selector for a label that must not be", "!spot", corev1.PodSpec{NodeSelector: map[string]string{"spot": "yes"}}, nil},
		{"pinned to the node", "life=od", corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: "node-1"}}, nil},
		{
			"affinity: the terms that are possible", "life=od",
			required(term(in("arch", "arm")), term(in("life", "spot")), term(in("life", "spot", "od")), corev1.NodeSelectorTerm{},
				term(notIn("life", "od")), term(in(corev1.LabelHostname, "node-1")),
				corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "node-1")}}),
			[]corev1.NodeSelectorTerm{term(in("arch", "arm"), fallback), term(in("life", "spot", "od"), fallback)},
		},
		{"affinity that excludes", "life=od", required(term(in("life", "spot"))), nil},
		{"affinity to nodes without the label", "life=od", required(term(without)), nil},
		{"affinity to smaller nodes", "size>5", required(term(smaller)), nil},
		{"affinity to another zone than the volume's", "life=od", away, nil},
		{"volume claim", "life=od", volume, []corev1.NodeSelectorTerm{term(fallback, in(corev1.LabelTopologyZone, "zone-a"))}},
		{"volume claim, and another zone wanted", "life=od", elsewhere, nil},
		{"volume that goes with the pod", "life=od", scratch, []corev1.NodeSelectorTerm{term(fallback)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := ParseSelector(tt.selector)
			if err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{Spec: tt.pod}
			if diff := cmp.Diff(tt.want, s.terms(pod, zoneOf(testNode("node-1"), pod))); diff != "" {
				t.Errorf("terms (-want +got):\n%s", diff)
			}
		})
	}
	for _, text := range []string{"a=b=c", "a in b", "-a=b", "a=" + "not a value!"} {
		if s, err := ParseSelector(text); err == nil {
			t.Errorf("%q parsed as %v", text, s)
		}
	}
	if s, err := ParseSelector(""); err != nil || !s.Empty() {
		t.Errorf("empty text: %v, %v", s, err)
	}
}
