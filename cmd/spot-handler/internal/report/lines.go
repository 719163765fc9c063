package report

import (
	"cmp"
	"fmt"
	"strings"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/terminal"
	"spot-handler/handler/interruption"
)

// Lines sum up for people, in so many columns of a terminal; 0 is no terminal.
func (r Report) Lines(width int) []string {
	s := r.Score
	if len(s.Nodes) == 0 {
		return []string{"No interruption was seen."}
	}
	lines := append([]string{""}, console.Table([]console.Column{
		{Title: "NODE", Least: 12}, {Title: "CORDONED", Drop: 1}, {Title: "REPLACEMENT READY", Drop: 2}, {Title: "DRAINED", Drop: 3}, {Title: "SLACK"}, {Title: "PODS", Least: 22},
	}, r.nodeRows(), width)...)
	if len(s.Workloads) > 0 {
		lines = append(append(lines, ""), console.Table([]console.Column{
			{Title: "WORKLOAD", Least: 16}, {Title: "FEWEST READY"}, {Title: "MISSING"}, {Title: "POD-SECONDS UNAVAILABLE"},
		}, s.workloadRows(), width)...)
	}
	lines = append(lines, "", fmt.Sprintf("%s had to leave: %s.", console.Count(s.Pods, "pod"), s.Counts))
	if c := s.Forecast; c != nil {
		text := fmt.Sprintf("%d of %s ended as forecast.", c.AsForecast, console.Count(c.Of, "pod"))
		if c.Later > 0 {
			text += fmt.Sprintf(" %d more came to the nodes later.", c.Later)
		}
		lines = append(lines, text)
		for _, m := range c.Misses {
			lines = append(lines, fmt.Sprintf("  %s/%s on %s: forecast %s, was %s", m.Namespace, m.Name, m.Node, outcomeText(m.Forecast), outcomeText(m.Outcome)))
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
		colour := terminal.Good
		if n.Truncated+n.Forced+n.Left+n.Open > 0 {
			colour = terminal.Bad
		}
		rows = append(rows, []console.Cell{
			{Text: n.Name}, {Text: both(since(begin, seen.Cordoned), nil)}, {Text: both(n.Ready, n.ForecastReady)},
			{Text: both(n.Ended, n.ForecastEnded)}, {Text: both(n.Slack, n.ForecastSlack)}, {Text: n.Counts.String(), Colour: colour},
		})
	}
	return rows
}

func (s Score) workloadRows() [][]console.Cell {
	var rows [][]console.Cell
	for _, w := range s.Workloads {
		fewest := console.Cell{Text: fmt.Sprintf("%d of %d", w.Fewest, w.Desired), Colour: terminal.Good}
		if w.Missing > 0 {
			fewest.Colour = terminal.Bad
		}
		if w.ForecastFewest != nil {
			fewest.Text += fmt.Sprintf(" (forecast %d)", *w.ForecastFewest)
		}
		rows = append(rows, []console.Cell{{Text: w.Namespace + "/" + w.Name}, fewest, {Text: fmt.Sprint(w.Missing)}, {Text: fmt.Sprintf("%.1f", w.UnavailableSeconds)}})
	}
	return rows
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
	var parts []string
	for _, o := range c.outcomes() {
		parts = append(parts, o.String())
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// outcomes are those that there are.
func (c Counts) outcomes() []interruption.Outcome {
	list := interruption.Pods{Graceful: c.Graceful, Truncated: c.Truncated, Forced: c.Forced, Left: c.Left}.Outcomes()
	if c.Open > 0 {
		list = append(list, interruption.Outcome{Name: "open", Pods: c.Open})
	}
	return list
}

// outcomeText says for people what became of a pod.
func outcomeText(o plan.Outcome) string {
	return interruption.OutcomeText(cmp.Or(string(o), "open"))
}
