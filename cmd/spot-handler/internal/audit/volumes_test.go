package audit

import (
	"fmt"
	"testing"

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
