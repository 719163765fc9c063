package observe

import (
	"testing"
	"time"

	"spot-handler/handler/interruption"
)

// A node that somebody was asked to end is watched for longer than one that nobody ends.
func TestReleasedIsWatchedLonger(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return began.Add(time.Duration(s) * time.Second) }
	ended := at(10)
	phases := func(list ...interruption.Phase) (n Node) {
		for i, p := range list {
			n.Phases = append(n.Phases, PhaseAt{p, at(i)})
		}
		return n
	}
	for name, tt := range map[string]struct {
		nodes []Node
		to    int
		want  bool
	}{
		"no node":                  {nil, 1000, false},
		"being drained":            {[]Node{phases(interruption.Draining)}, 1000, false},
		"drained just now":         {[]Node{phases(interruption.Draining, interruption.Drained)}, 30, false},
		"drained":                  {[]Node{phases(interruption.Draining, interruption.Drained)}, 31, true},
		"released":                 {[]Node{phases(interruption.Draining, interruption.Drained, interruption.Released)}, 120, false},
		"released for long":        {[]Node{phases(interruption.Draining, interruption.Drained, interruption.Released)}, 121, true},
		"gone":                     {[]Node{{End: Gone, EndAt: &ended}}, 11, true},
		"one of two being drained": {[]Node{{End: Gone, EndAt: &ended}, phases(interruption.Draining)}, 1000, false},
	} {
		if got := (Recording{Nodes: tt.nodes, To: at(tt.to)}).over(); got != tt.want {
			t.Errorf("%s: over %t, want %t", name, got, tt.want)
		}
	}
}
