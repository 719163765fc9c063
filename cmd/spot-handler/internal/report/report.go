// Package report says how interruptions went: it scores a recording, against a forecast where
// there is one, and draws both as a page that needs nothing but a browser.
//
// Everything here is pure: a recording and a forecast in, figures, lines and a page out. Names
// and reasons come from the cluster, where anybody may have written them.
package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/handler/interruption"
)

// Report is all that is known of interruptions that are over. Programs read it as JSON.
type Report struct {
	Score     Score             `json:"score"`
	Recording observe.Recording `json:"recording"`
	Forecast  *plan.Forecast    `json:"forecast,omitempty"`
}

// Of makes a report of a recording, and of what had been forecast, which may be nil.
func Of(r observe.Recording, f *plan.Forecast) Report {
	return Report{Score: score(r, f), Recording: r, Forecast: f}
}

// Require notes what was required, and whether it was so.
func (r *Report) Require(of []Requirement) {
	for _, q := range of {
		r.Score.Required = append(r.Score.Required, q.judge(r.Score))
	}
}

// Broken are the requirements that were not met, each in a clause.
func (r *Report) Broken() []string {
	var list []string
	for _, v := range r.Score.Required {
		if !v.Met {
			list = append(list, v.Required+": "+v.Got)
		}
	}
	return list
}

// since is how many seconds after the first notice something was.
func since(begin time.Time, at *time.Time) *plan.Seconds {
	if at == nil {
		return nil
	}
	return new(plan.Seconds(at.Sub(begin).Seconds()))
}

// Lines sum up for people, in so many columns of a terminal; 0 is no terminal.
func (r Report) Lines(width int) []string {
	s := r.Score
	if len(s.Nodes) == 0 {
		return []string{"No interruption was seen."}
	}
	lines := append([]string{""}, console.Table([]console.Column{
		{Title: "NODE"},
		{Title: "CORDONED", Drop: 1},
		{Title: "REPLACEMENT READY", Drop: 2},
		{Title: "DRAINED", Drop: 3},
		{Title: "SLACK"},
		{Title: "PODS"},
	}, r.nodeRows(), width)...)
	if len(s.Workloads) > 0 {
		lines = append(append(lines, ""), console.Table([]console.Column{
			{Title: "WORKLOAD"}, {Title: "FEWEST READY"}, {Title: "MISSING"}, {Title: "POD-SECONDS UNAVAILABLE"},
		}, console.Rows(s.Workloads, workloadRow), width)...)
	}
	lines = append(lines, "", fmt.Sprintf("%s had to leave: %s.", console.Count(s.Pods, "pod"), s.Counts))
	if c := s.Forecast; c != nil {
		text := fmt.Sprintf("%d of %s ended as forecast.", c.AsForecast, console.Count(c.Of, "pod"))
		if c.Later > 0 {
			text += fmt.Sprintf(" %d more came to the nodes later.", c.Later)
		}
		lines = append(lines, text)
		for _, m := range c.Misses {
			lines = append(lines, fmt.Sprintf("  %s/%s on %s: forecast %s, was %s",
				m.Namespace, m.Name, m.Node, outcomeText(m.Forecast), outcomeText(m.Outcome)))
		}
	}
	for _, v := range s.Required {
		lines = append(lines, fmt.Sprintf("%s %s: %s", map[bool]string{true: "met:   ", false: "broken:"}[v.Met], v.Required, v.Got))
	}
	return append(lines, "Times are seconds since the first notice.")
}

func (r Report) nodeRows() [][]console.Cell {
	begin := r.Recording.Begin()
	var rows [][]console.Cell
	for i, n := range r.Score.Nodes {
		seen := r.Recording.Nodes[i]
		colour := console.Good
		if n.Truncated+n.Forced+n.Left+n.Open > 0 {
			colour = console.Bad
		}
		rows = append(rows, []console.Cell{
			{Text: n.Name}, {Text: both(since(begin, seen.Cordoned), nil)}, {Text: both(n.Ready, n.ForecastReady)},
			{Text: both(n.Ended, n.ForecastEnded)}, {Text: both(n.Slack, n.ForecastSlack)}, {Text: n.Counts.String(), Colour: colour},
		})
	}
	return rows
}

func workloadRow(w WorkloadScore) []console.Cell {
	fewest := console.Cell{Text: fmt.Sprintf("%d of %d", w.Fewest, w.Desired), Colour: console.Good}
	if w.Missing > 0 {
		fewest.Colour = console.Bad
	}
	if w.ForecastFewest != nil {
		fewest.Text += fmt.Sprintf(" (forecast %d)", *w.ForecastFewest)
	}
	return []console.Cell{
		{Text: w.Namespace + "/" + w.Name},
		fewest,
		{Text: fmt.Sprint(w.Missing)},
		{Text: fmt.Sprintf("%.1f", w.UnavailableSeconds)},
	}
}

// both is a time, and the one that was forecast.
func both(was, forecast *plan.Seconds) string {
	text := console.None
	if was != nil {
		text = fmt.Sprintf("%.1f s", *was)
	}
	if forecast != nil {
		text += fmt.Sprintf(" (forecast %.1f)", *forecast)
	}
	return text
}

// String names what there is of each outcome.
func (c Counts) String() string {
	list := interruption.Pods{Graceful: c.Graceful, Truncated: c.Truncated, Forced: c.Forced, Left: c.Left}.Outcomes()
	if c.Open > 0 {
		list = append(list, interruption.Outcome{Name: "open", Pods: c.Open})
	}
	var parts []string
	for _, o := range list {
		parts = append(parts, o.String())
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// outcomeText says for people what became of a pod.
func outcomeText(o plan.Outcome) string {
	return interruption.OutcomeText(cmp.Or(string(o), "open"))
}

// Requirement limits one figure of a score, of what an interruption has to end like.
type Requirement struct {
	figure
	text  string
	limit float64 // in the figure's unit
}

// Verdict says whether a requirement was met.
type Verdict struct {
	Required string `json:"required"`
	Got      string `json:"got"`
	Met      bool   `json:"met"`
}

// figure is something of a score that can be required.
type figure struct {
	of    func(Score) *float64 // nil if it is not known
	least bool                 // the limit is a minimum
	unit  string
}

var figures = map[string]figure{
	"left":        pods(func(s Score) int { return s.Left + s.Open }),
	"forced":      pods(func(s Score) int { return s.Forced }),
	"truncated":   pods(func(s Score) int { return s.Truncated }),
	"dip":         pods(func(s Score) int { return s.Dip }),
	"unavailable": {of: func(s Score) *float64 { return &s.UnavailableSeconds }, unit: "pod-seconds"},
	"slack":       {of: func(s Score) *float64 { return s.SlackSeconds }, least: true, unit: "s"},
	"misses": {of: func(s Score) *float64 {
		if s.Forecast == nil {
			return nil
		}
		return new(float64(len(s.Forecast.Misses)))
	}, unit: "pods"},
}

func pods(count func(Score) int) figure {
	return figure{of: func(s Score) *float64 { return new(float64(count(s))) }, unit: "pods"}
}

// ParseRequirements reads a text such as left=0,slack=20s.
func ParseRequirements(text string) (list []Requirement, err error) {
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		f, known := figures[name]
		if !ok || !known {
			return nil, fmt.Errorf("%q: want NAME=LIMIT, with NAME one of %s", part, strings.Join(slices.Sorted(maps.Keys(figures)), ", "))
		}
		limit, err := f.parse(value)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", part, err)
		}
		list = append(list, Requirement{f, strings.TrimSpace(part), limit})
	}
	return list, nil
}

func (f figure) parse(value string) (float64, error) {
	if f.unit == "pods" {
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return 0, fmt.Errorf("want a number of pods, such as 0")
		}
		return float64(n), nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("want a duration, such as 20s")
	}
	return d.Seconds(), nil
}

func (q Requirement) judge(s Score) Verdict {
	got := q.of(s)
	if got == nil {
		return Verdict{Required: q.text, Got: "not known"}
	}
	v := Verdict{Required: q.text, Got: fmt.Sprintf("%.1f %s", *got, q.unit), Met: *got <= q.limit}
	if q.least {
		v.Met = *got >= q.limit
	}
	if q.unit == "pods" {
		v.Got = fmt.Sprintf("%.0f pods", *got)
	}
	return v
}
