package audit

import (
	"encoding/json"
	"fmt"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/terminal"
)

// Report is what programs read.
type Report struct {
	Findings []Finding `json:"findings"`
	// Accepted are those that the baseline accepts.
	Accepted []Finding `json:"accepted,omitempty"`
	// Unread says what could not be read, and why.
	Unread []string `json:"unread,omitempty"`
}

// Accept moves the findings that an earlier report lists, as JSON, out of the way.
func (r Report) Accept(baseline []byte) (Report, error) {
	var earlier Report
	if err := json.Unmarshal(baseline, &earlier); err != nil {
		return r, fmt.Errorf("want what `audit -o json` printed: %w", err)
	}
	known := map[string]bool{}
	for _, list := range [][]Finding{earlier.Findings, earlier.Accepted} {
		for _, f := range list {
			known[f.Key()] = true
		}
	}
	open := []Finding{}
	for _, f := range r.Findings {
		if known[f.Key()] {
			r.Accepted = append(r.Accepted, f)
		} else {
			open = append(open, f)
		}
	}
	r.Findings = open
	return r, nil
}

// Fails reports whether a finding is as bad as that, or worse.
func (r Report) Fails(from Severity) bool {
	for _, f := range r.Findings {
		if f.Severity.AtLeast(from) {
			return true
		}
	}
	return false
}

var columns = []console.Column{
	{Title: "ID"}, {Title: "SEVERITY"}, {Title: "OBJECT", Least: 16}, {Title: "PODS", Drop: 1}, {Title: "WHAT, AND WHY IT WILL HURT", Least: 32},
}

// Lines shows the report to people, in so many columns of a terminal; 0 is no terminal.
func (r Report) Lines(width int) []string {
	var lines []string
	switch {
	case len(r.Findings) == 0 && len(r.Unread) > 0:
		lines = []string{"Nothing was found in what could be read."}
	case len(r.Findings) == 0:
		lines = []string{"Nothing was found."}
	default:
		rows := make([][]console.Cell, len(r.Findings))
		for i, f := range r.Findings {
			colour := terminal.Notable
			if f.Severity == Critical {
				colour = terminal.Bad
			}
			rows[i] = []console.Cell{
				{Text: f.ID}, {Text: string(f.Severity), Colour: colour}, {Text: f.Namespace + " " + f.Object},
				{Text: fmt.Sprint(f.Pods)}, {Text: f.What + ": " + f.Why},
			}
		}
		lines = append(console.Table(columns, rows, width), "", "To mend it, once you have read the page of the manual about it:")
		for _, f := range r.Findings {
			lines = append(lines, fmt.Sprintf("  # %s %s %s, %s", f.ID, f.Namespace, f.Object, f.Page), "  "+f.Fix)
		}
	}
	if n := len(r.Accepted); n > 0 {
		lines = append(lines, fmt.Sprintf("The baseline accepts %d more.", n))
	}
	return lines
}
