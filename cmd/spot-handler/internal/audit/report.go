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

// shown bounds how many findings of one check people are shown.
const shown = 5

var columns = []console.Column{
	{Title: "ID"}, {Title: "SEVERITY"}, {Title: "OBJECT"}, {Title: "PODS", Drop: 1}, {Title: "WHAT"},
}

// Lines shows the report to people, in so many columns of a terminal; 0 is no terminal.
func (r Report) Lines(width int) (lines []string) {
	var groups [][]Finding // by check, the worst first
	place := map[string]int{}
	for _, f := range r.Findings {
		i, ok := place[f.ID]
		if !ok {
			i = len(groups)
			place[f.ID], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], f)
	}
	switch {
	case len(groups) == 0 && len(r.Unread) > 0:
		lines = []string{"Nothing was found in what could be read."}
	case len(groups) == 0:
		lines = []string{"Nothing was found."}
	default:
		var rows [][]console.Cell
		for _, g := range groups {
			rows = append(rows, rowsOf(g)...)
		}
		lines = append(console.Table(columns, rows, width), "", "Why it will hurt, and what fixes it. Read the page of the manual first.")
		for _, g := range groups {
			lines = append(lines, fixesOf(g, width)...)
		}
	}
	if n := len(r.Accepted); n > 0 {
		lines = append(lines, fmt.Sprintf("The baseline accepts %d more.", n))
	}
	return lines
}

// rowsOf are the rows of one check.
func rowsOf(group []Finding) (rows [][]console.Cell) {
	colour := terminal.Notable
	if group[0].Severity == Critical {
		colour = terminal.Bad
	}
	for _, f := range group[:min(shown, len(group))] {
		rows = append(rows, []console.Cell{
			{Text: f.ID}, {Text: string(f.Severity), Colour: colour}, {Text: f.where()}, {Text: fmt.Sprint(f.Pods)}, {Text: f.What},
		})
	}
	if more := len(group) - shown; more > 0 {
		concerned := 0
		for _, f := range group[shown:] {
			concerned += f.Pods
		}
		rows = append(rows, []console.Cell{
			{Text: group[0].ID}, {Text: string(group[0].Severity), Colour: colour}, {Text: fmt.Sprintf("and %d more", more)}, {Text: fmt.Sprint(concerned)}, {},
		})
	}
	return rows
}

// fixesOf says of one check why its findings hurt, and what fixes those that are shown. Commands
// are not wrapped: they are for copying.
func fixesOf(group []Finding, width int) []string {
	lines := []string{"", group[0].ID + "  " + group[0].Page}
	why := ""
	for _, f := range group[:min(shown, len(group))] {
		if f.Why != why {
			lines, why = append(lines, console.Wrap(f.Why, "  # ", width)...), f.Why
		}
		lines = append(lines, "  "+f.Fix)
	}
	if more := len(group) - shown; more > 0 {
		lines = append(lines, fmt.Sprintf("  # and %d more: -o json lists all", more))
	}
	return lines
}
