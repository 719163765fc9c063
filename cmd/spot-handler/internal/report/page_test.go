package report

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
)

// texts are those of the bars and of the marks of a track.
func texts(t track) (bars, marks []string) {
	for _, b := range t.Bars {
		bars = append(bars, b.Class+": "+b.Text)
	}
	for _, m := range t.Marks {
		marks = append(marks, m.Class+": "+m.Text)
	}
	return bars, marks
}

// The node's track has its phases from the notice on and its replacement, a pod's has its states and where
// the forecast was another.
func TestTracksOfANode(t *testing.T) {
	p := Of(one(), forecastOf()).page()
	if len(p.Nodes) != 1 || len(p.Nodes[0].Pods) != 3 || len(p.Refused) != 0 {
		t.Fatalf("%d nodes, %d refused", len(p.Nodes), len(p.Refused))
	}
	node := p.Nodes[0]
	bars, marks := texts(node.Track)
	for what, diff := range map[string]string{
		"bars": cmp.Diff([]string{
			"phase-noticed: Noticed from 0.0 s",
			"phase-replacing: Replacing from 0.4 s",
			"phase-draining: Draining from 20.5 s",
			"phase-drained: Drained from 35.0 s",
			"phase-released: Released from 35.2 s",
			"ready: replacement ready from 20.4 s",
			"boots: replacement requested at 0.4 s",
		}, bars),
		"marks": cmp.Diff([]string{"deadline: deadline at 120.0 s"}, marks),
	} {
		if diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	for i, want := range []struct {
		had  plan.Outcome
		gone string
	}{{"", "28.0"}, {"", "28.0"}, {plan.Truncated, "34.0"}} {
		pod := node.Pods[i]
		bars, marks := texts(pod.Track)
		if diff := cmp.Diff([]string{"deadline: deadline at 120.0 s", "forecast: forecast: gone at " + want.gone + " s"}, marks); diff != "" || pod.Had != want.had {
			t.Errorf("pod %d was forecast as %q (marks, -want +got):\n%s", i, pod.Had, diff)
		}
		if len(bars) != 3 {
			t.Errorf("pod %d has %q", i, bars)
		}
	}
}

// What lies outside the page's time is not marked on its edge.
func TestMarksOutside(t *testing.T) {
	x := axisOf(one())
	for seconds, want := range map[float64]int{-1: 0, 0: 1, 60: 1, x.whole.Seconds(): 1, x.whole.Seconds() + 1: 0} {
		var tr track
		tr.mark(x, after(seconds), "deadline", "deadline")
		if len(tr.Marks) != want {
			t.Errorf("%.1f s: %d marks, want %d", seconds, len(tr.Marks), want)
		}
	}
	r := observe.Recording{To: after(42), Nodes: []observe.Node{{Noticed: noticed}, {Noticed: noticed, Deadline: at(120)}}}
	if got := axisOf(r).whole.Seconds(); got != 123 {
		t.Errorf("with one deadline of two nodes the page covers %.1f s, want 123", got)
	}
}

// Of many nodes the first two are open, and those that went badly. What was refused is listed.
func TestWhichNodesAreOpen(t *testing.T) {
	p := Of(massInterruption()).page()
	var open, dirty []string
	for i, n := range p.Nodes {
		if n.Open {
			open = append(open, fmt.Sprint(i))
		}
		if !n.Clean {
			dirty = append(dirty, fmt.Sprint(i))
		}
	}
	if !slices.Equal(open, []string{"0", "1", "3", "10", "17"}) || !slices.Equal(dirty, []string{"3", "10", "17"}) || len(p.Nodes) != 20 {
		t.Errorf("of %d nodes %q are open, and %q went badly", len(p.Nodes), open, dirty)
	}
	if len(p.Refused) != 6 {
		t.Errorf("%d pods were refused, want 6", len(p.Refused))
	}
	for _, pod := range p.Refused {
		if pod.Refusal == nil || pod.Node == "" {
			t.Errorf("refused: %+v", pod)
		}
	}
}

// In time means that the drain ended before its deadline, with every pod gone.
func TestInTime(t *testing.T) {
	for name, tt := range map[string]struct {
		slack *float64
		last  plan.Outcome
		want  bool
	}{
		"good":               {value(85.0), plan.Graceful, true},
		"with little slack":  {value(0.5), plan.Graceful, true},
		"at the deadline":    {value(0.0), plan.Graceful, false},
		"past it":            {value(-1.0), plan.Graceful, false},
		"a pod is left":      {value(85.0), plan.Left, false},
		"a pod is cut":       {value(85.0), plan.Truncated, true},
		"without a deadline": {nil, plan.Graceful, false},
	} {
		r := one()
		r.Nodes[0].SlackSeconds, r.Nodes[0].Pods[2].Outcome = tt.slack, tt.last
		if got := Of(r, nil).page().InTime; got != tt.want {
			t.Errorf("%s: in time %t, want %t", name, got, tt.want)
		}
	}
}
