package provisioner

import (
	"testing"

	"spot-handler/handler/interruption"
)

// A replacement is asked for once the record gives it a name, and of the backend that it names.
func TestAsked(t *testing.T) {
	for name, tt := range map[string]struct {
		r    *interruption.Replacement
		want bool
	}{
		"none":              {nil, false},
		"named":             {&interruption.Replacement{Backend: ASG, Name: "workers"}, true},
		"looked for":        {&interruption.Replacement{Backend: ASG}, false},
		"another backend's": {&interruption.Replacement{Backend: Karpenter, Name: "claim"}, false},
		"looked for there":  {&interruption.Replacement{Backend: Karpenter}, false},
	} {
		if got := Asked(interruption.Record{Replacement: tt.r}, ASG); (got != nil) != tt.want || tt.want && got != tt.r {
			t.Errorf("%s: %v, want it: %t", name, got, tt.want)
		}
	}
}
