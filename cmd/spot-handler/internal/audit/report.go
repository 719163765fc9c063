package audit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"spot-handler/cmd/spot-handler/internal/console"
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
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity.rank() <= from.rank() })
}

// shown bounds how many findings of one check people are shown.
const shown = 5

var columns = []console.Column{
	{Title: "ID"}, {Title: "SEVERITY"}, {Title: "OBJECT"}, {Title: "PODS", Drop: 1}, {Title: "WHAT"},
}

// Lines shows the report to people, in so many columns of a terminal; 0 is no terminal. Commands are
// not wrapped, so people can copy them.
func (r Report) Lines(width int) (lines []string) {
	var ids []string // the worst first
	theirs := map[string][]Finding{}
	for _, f := range r.Findings {
		if theirs[f.ID] == nil {
			ids = append(ids, f.ID)
		}
		theirs[f.ID] = append(theirs[f.ID], f)
	}
	var rows [][]console.Cell
	var fixes []string
	for _, id := range ids {
		why, rest := "", Finding{ID: id, Severity: theirs[id][0].Severity}
		fixes = append(fixes, "", id+"  "+theirs[id][0].Page)
		for i, f := range theirs[id] {
			if i >= shown {
				rest.Pods += f.Pods
				continue
			}
			if rows = append(rows, f.row()); f.Why != why {
				fixes, why = append(fixes, console.Wrap(f.Why, "  # ", width)...), f.Why
			}
			fixes = append(fixes, "  "+f.Fix)
		}
		if more := len(theirs[id]) - shown; more > 0 {
			rest.Object = fmt.Sprintf("and %d more", more)
			rows, fixes = append(rows, rest.row()), append(fixes, "  # "+rest.Object+": -o json lists all")
		}
	}
	switch {
	case len(rows) == 0 && len(r.Unread) > 0:
		lines = []string{"Nothing was found in what could be read."}
	case len(rows) == 0:
		lines = []string{"Nothing was found."}
	default:
		lines = append(console.Table(columns, rows, width), "", "Why it will hurt, and what fixes it. Read the page of the manual first.")
	}
	lines = append(lines, fixes...)
	if n := len(r.Accepted); n > 0 {
		lines = append(lines, fmt.Sprintf("The baseline accepts %d more.", n))
	}
	return lines
}

func (f Finding) row() []console.Cell {
	colour := console.Notable
	if f.Severity == Critical {
		colour = console.Bad
	}
	return []console.Cell{
		{Text: f.ID},
		{Text: string(f.Severity), Colour: colour},
		{Text: strings.TrimSpace(f.Namespace + " " + f.Object)},
		{Text: fmt.Sprint(f.Pods)},
		{Text: f.What},
	}
}
