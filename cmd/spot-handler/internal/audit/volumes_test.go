package audit

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/provisioner/karpenter"
)

func TestVolumesElsewhere(t *testing.T) {
	for name, tt := range map[string]struct {
		zone string
		want string
	}{
		"no volume":                    {"", ""},
		"a volume where there is room": {"eu-west-1b", ""},
		"a volume where there is none": {"eu-west-1a", "[statefulset/db 2]"},
	} {
		s := Snapshot{Nodes: nodesWith(1, map[string]string{"karpenter.sh/nodepool": "spot"})}
		s.Pods = of("statefulset/db", 2, func(p *Pod) { p.Node, p.Zone = "node-0", tt.zone })
		s.Outlooks = []karpenter.Outlook{{Pool: "other", Fallbacks: []string{"od"}, Barred: []string{"eu-west-1a"}}, {Pool: "spot", Fallbacks: []string{"od"}, Barred: []string{"eu-west-1a"}}}
		s.index()
		got := ""
		for _, f := range volumesElsewhere(s) {
			got += fmt.Sprintf("[%s %d]", f.Object, f.Pods)
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

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
