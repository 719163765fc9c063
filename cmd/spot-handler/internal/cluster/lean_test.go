package cluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestOnlyZoneOfVolumes(t *testing.T) {
	in := func(key string, zones ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: zones}}}
	}
	for name, tt := range map[string]struct {
		terms []corev1.NodeSelectorTerm
		want  string
	}{
		"anywhere":            {nil, ""},
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
}
