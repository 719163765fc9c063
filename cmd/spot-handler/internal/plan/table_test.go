package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spot-handler/cmd/spot-handler/internal/console"
)

func reportOf(names ...string) Forecast {
	var f Forecast
	f.Settings = "the default settings, as no pod with the label app.kubernetes.io/name=spot-handler was found that drains this node"
	for _, name := range names {
		f.Nodes = append(f.Nodes, Node{Name: name, Kind: "spot-interruption", Deadline: new(Seconds(120)), Empty: new(Seconds(8)), Slack: new(Seconds(112))})
		f.Pods = append(f.Pods, Pod{
			Namespace: "default", Name: "web-7d4b9c", Node: name, Grace: 5, EvictBy: new(Seconds(105)), Leaves: new(Seconds(2)), Gone: new(Seconds(7)),
			Outcome: Graceful, WaitsFor: "surged: waits for its replacement pod",
		})
	}
	return f
}

// On a terminal every line fits.
func TestLinesFit(t *testing.T) {
	const name = "ip-10-0-1-2.eu-west-1.compute.internal"
	for _, width := range []int{80, 120, 200} {
		for _, f := range []Forecast{reportOf(name), reportOf(name, "another")} {
			for _, line := range Lines(f, width) {
				if console.Width(line) > width {
					t.Errorf("%d columns: %q", width, line)
				}
			}
		}
	}
}

// What there is no reason for leaves nothing behind, and a pod says all that is known.
func TestReasons(t *testing.T) {
	for _, tt := range []struct {
		pod  Pod
		want string
	}{
		{Pod{}, "-"},
		{Pod{WaitsFor: "its turn"}, "its turn"},
		{Pod{WaitsFor: "its turn", Reason: "too late", NoSurge: "maxSurge 0"}, "its turn; too late; not surged: maxSurge 0"},
		{Pod{Reason: "it tolerates that", NoSurge: "maxSurge 0", Outcome: Stays}, "it tolerates that"},
	} {
		if got := why(tt.pod); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	var of []string
	for _, r := range []Replacement{
		{}, {Why: "named"}, {NoPlace: []string{"default/a: too large", "default/b"}}, {Why: "named", NoPlace: []string{"default/a"}},
	} {
		lines := capacity([]Node{{Name: "a", Replacement: &r}}, 0)
		of = append(of, strings.TrimSpace(strings.TrimPrefix(lines[1], "a            -   -     never  0     -")))
	}
	want := []string{"-", "named", "no place: default/a: too large; default/b", "named; no place: default/a"}
	if diff := cmp.Diff(want, of); diff != "" {
		t.Errorf("reasons of replacements (-want +got):\n%s", diff)
	}
}
