package plan

import (
	"slices"
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

// What needs attention comes first, and of what ends alike, what leaves first.
func TestWorstFirst(t *testing.T) {
	pod := func(name string, of Outcome, leaves float64) Pod {
		p := Pod{Name: name, Outcome: of}
		if leaves > 0 {
			p.Leaves = new(Seconds(leaves))
		}
		return p
	}
	want := []Pod{
		pod("left", Left, 0), pod("forced", Forced, 9), pod("cut", Truncated, 90), pod("first", Graceful, 1), pod("second", Graceful, 2), pod("third", Graceful, 3), pod("stays", Stays, 0),
	}
	for i := range want { // whichever was first
		got := worstFirst(slices.Concat(want[i:], want[:i]))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("from %d on (-want +got):\n%s", i, diff)
		}
	}
}

// The API server's refusals are shown with the first object, and how many more there are.
func TestAnswersInTable(t *testing.T) {
	a := Answers{Tried: 5, As: []string{"mine", "the daemon"}}
	if got := answers(a, 0); len(got) != 1 || !strings.HasSuffix(got[0], "it refuses nothing.") {
		t.Errorf("%q", got)
	}
	a.Refused = []Refusal{
		{Verb: "evict", Why: "needs 2", Budget: true, Objects: []string{"pods/default/a"}},
		{Verb: "surge", Why: "denied", Objects: []string{"pods/default/b", "pods/default/c", "pods/default/d"}},
	}
	got := answers(a, 0)
	if len(got) != 5 || got[0] != "Asked the API server 5 times, as mine and the daemon: it refuses 4." ||
		got[3] != "evict    pods/default/a             now, by a PDB: needs 2" || got[4] != "surge    pods/default/b and 2 more  denied" {
		t.Errorf("%q", got)
	}
}

// What is known of single workloads is said only if it is.
func TestAssumedInTable(t *testing.T) {
	a := Assumed()
	want := "boot 45 s (assumed), ready 10 s (assumed), stop 5 s (assumed), detach 6 s (assumed)"
	if got := assumed(a); got != want+"." {
		t.Errorf("%q, want %q", got, want+".")
	}
	a.ReadyOf = map[string]Assumption{"shop/deployment/web": {}, "shop/deployment/api": {}}
	if got, want := assumed(a), want+", ready of 2 workloads by their own history."; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
