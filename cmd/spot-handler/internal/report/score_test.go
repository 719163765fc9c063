package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
)

func TestScore(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*observe.Recording)
		want   string // counts, dip, slack
		slack  float64
	}{
		{"good", func(*observe.Recording) {}, "3 graceful; dip 0", 85},
		{"bad ends", func(r *observe.Recording) {
			for i, o := range []plan.Outcome{plan.Truncated, plan.Forced, plan.Left} {
				r.Nodes[0].Pods[i].Outcome = o
			}
		}, "1 grace period cut short, 1 force-deleted, 1 not evicted; dip 0", 85},
		{"cancelled", func(r *observe.Recording) {
			r.Nodes[0].Pods[0].Outcome, r.Nodes[0].SlackSeconds = "", nil
		}, "2 graceful, 1 open; dip 0", -1},
		{"dip", func(r *observe.Recording) { r.Workloads[0].Missing = 2 }, "3 graceful; dip 2", 85},
		{"no deadline", func(r *observe.Recording) { r.Nodes[0].Deadline, r.Nodes[0].SlackSeconds = nil, nil }, "3 graceful; dip 0", -1},
		{"two nodes, the least slack counts", func(r *observe.Recording) {
			second := r.Nodes[0]
			second.SlackSeconds = value(5.0)
			r.Nodes = append(r.Nodes, second)
		}, "6 graceful; dip 0", 5},
		{"two nodes, one is not over", func(r *observe.Recording) {
			second := r.Nodes[0]
			second.SlackSeconds = nil
			r.Nodes = append(r.Nodes, second)
		}, "6 graceful; dip 0", -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := one()
			tt.change(&r)
			s := Of(r, nil).Score
			if got := s.Counts.String() + "; dip " + string(rune('0'+s.Dip)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if slack := s.SlackSeconds; (slack == nil) != (tt.slack < 0) || slack != nil && *slack != tt.slack {
				t.Errorf("slack %v, want %v", slack, tt.slack)
			}
			if s.Forecast != nil {
				t.Error("compared with nothing")
			}
		})
	}
}

// Pods are joined by name and node. One that came later was not forecast; one that was forecast
// and of which nothing was seen has stayed.
func TestScoreComparesWithForecast(t *testing.T) {
	f := forecastOf()
	f.Pods = append(f.Pods,
		plan.Pod{Namespace: "default", Name: "stays", Node: f.Nodes[0].Name, Outcome: plan.Stays},
		plan.Pod{Namespace: "default", Name: "vanished", Node: f.Nodes[0].Name, Outcome: plan.Graceful})
	f.Pods = f.Pods[1:] // web-7d4b9c-1 had not been there
	// Of these, nothing was seen.
	f.Nodes = append(f.Nodes, plan.Node{Name: "another", Ended: value(plan.Seconds(99))})
	f.Workloads = append(f.Workloads,
		plan.Workload{Namespace: "default", Name: "deployment/api", FewestReady: 1},
		plan.Workload{Namespace: "other", Name: "deployment/web", FewestReady: 2})
	s := Of(one(), f).Score
	if s.Forecast.Of != 4 || s.Forecast.AsForecast != 2 || s.Forecast.Later != 1 {
		t.Errorf("%d of %d as forecast, and %d later; want 2 of 4, and 1", s.Forecast.AsForecast, s.Forecast.Of, s.Forecast.Later)
	}
	got := map[string]string{}
	for _, m := range s.Forecast.Misses {
		got[m.Name] = string(m.Forecast) + ", was " + string(m.Outcome)
	}
	want := map[string]string{"web-7d4b9c-3": "truncated, was graceful", "vanished": "graceful, was stays"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("misses (-want +got):\n%s", diff)
	}
	if n := s.Nodes[0]; *n.Ended != 35 || *n.ForecastEnded != 34 || *n.Ready != 20.4 || *n.ForecastReady != 19 {
		t.Errorf("node %+v", n)
	}
	if w := s.Workloads[0]; w.Desired != 6 || *w.ForecastFewest != 6 {
		t.Errorf("workload %+v", w)
	}
}

func TestRequirements(t *testing.T) {
	bad := one()
	bad.Nodes[0].Pods[0].Outcome, bad.Nodes[0].Pods[1].Outcome = plan.Left, ""
	bad.Workloads[0].Missing, bad.Workloads[0].UnavailableSeconds = 2, 12.5
	for _, tt := range []struct {
		text   string
		report Report
		broken []string
	}{
		{"left=0,dip=0,slack=20s,forced=0,truncated=0,unavailable=0s", Of(one(), nil), nil},
		{"slack=85s", Of(one(), nil), nil},
		{"slack=86s", Of(one(), nil), []string{"slack=86s: 85.0 s"}},
		{"left=1, dip=1,unavailable=12s", Of(bad, nil), []string{"left=1: 2 pods", "dip=1: 2 pods", "unavailable=12s: 12.5 pod-seconds"}},
		{"left=2,dip=2,unavailable=13s", Of(bad, nil), nil},
		{"misses=0", Of(one(), nil), []string{"misses=0: not known"}},
		{"misses=0", Of(one(), forecastOf()), []string{"misses=0: 1 pods"}},
		{"misses=1", Of(one(), forecastOf()), nil},
		{"slack=0s", Of(observe.Recording{}, nil), []string{"slack=0s: not known"}},
	} {
		q, err := ParseRequirements(tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		tt.report.Require(q)
		if diff := cmp.Diff(tt.broken, tt.report.Broken()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, diff)
		}
	}
}

func TestRequirementsThatAreWrong(t *testing.T) {
	for _, text := range []string{"", "left", "left=", "left=-1", "left=1.5", "slack=20", "slack=-1s", "slack=NaN", "leftovers=0", "left=0,,dip=0"} {
		if q, err := ParseRequirements(text); err == nil {
			t.Errorf("%q is taken for %+v", text, q)
		}
	}
}

func TestLines(t *testing.T) {
	r := Of(one(), forecastOf())
	q, err := ParseRequirements("left=0,misses=0")
	if err != nil {
		t.Fatal(err)
	}
	r.Require(q)
	const want = `
NODE                                    CORDONED  REPLACEMENT READY       DRAINED                 SLACK                   PODS
ip-10-0-1-2.eu-west-1.compute.internal  0.2 s     20.4 s (forecast 19.0)  35.0 s (forecast 34.0)  85.0 s (forecast 86.0)  3 graceful

WORKLOAD                FEWEST READY         MISSING  POD-SECONDS UNAVAILABLE
default/deployment/web  6 of 6 (forecast 6)  0        0.0

3 pods had to leave: 3 graceful.
2 of 3 pods ended as forecast.
  default/web-7d4b9c-3 on ip-10-0-1-2.eu-west-1.compute.internal: forecast grace period cut short, was graceful
met:    left=0: 0 pods
broken: misses=0: 1 pods
Times are seconds since the first notice.`
	if diff := cmp.Diff(want, strings.Join(r.Lines(0), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Of(observe.Recording{}, nil).Lines(0); !cmp.Equal(got, []string{"No interruption was seen."}) {
		t.Errorf("%q", got)
	}
}

// What went badly stands out, and pods that came late are no misses.
func TestLinesOfABadOutcome(t *testing.T) {
	colours := func(r Report) (bad, good int) {
		text := strings.Join(r.Lines(200), "\n")
		return strings.Count(text, "[31m"), strings.Count(text, "[32m") // red and green
	}
	if bad, good := colours(Of(one(), nil)); bad != 0 || good != 2 {
		t.Errorf("%d cells are bad and %d good, want the node's and the workload's to be good", bad, good)
	}
	for name, change := range map[string]func(*observe.Recording){
		"a pod cut short":  func(r *observe.Recording) { r.Nodes[0].Pods[0].Outcome = plan.Truncated },
		"a pod forced":     func(r *observe.Recording) { r.Nodes[0].Pods[0].Outcome = plan.Forced },
		"a pod left":       func(r *observe.Recording) { r.Nodes[0].Pods[0].Outcome = plan.Left },
		"a pod under way":  func(r *observe.Recording) { r.Nodes[0].Pods[0].Outcome = "" },
		"one left, two ok": func(r *observe.Recording) { r.Nodes[0].Pods[2].Outcome = plan.Left },
		"a pod missing":    func(r *observe.Recording) { r.Workloads[0].Missing = 1 },
	} {
		rec := one()
		change(&rec)
		if bad, good := colours(Of(rec, nil)); bad != 1 || good != 1 {
			t.Errorf("%s: %d cells are bad and %d good, want one of each", name, bad, good)
		}
	}
	f := forecastOf()
	f.Pods = f.Pods[1:]
	if text := strings.Join(Of(one(), f).Lines(0), "\n"); !strings.Contains(text, "1 of 2 pods ended as forecast. 1 more came to the nodes later.") {
		t.Error(text)
	}
}
