package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/offerings"
	"spot-handler/handler/provisioner"
)

var columns = []console.Column{
	{Title: "NODE"}, {Title: "KIND", Drop: 4}, {Title: "PHASE"}, {Title: "TIME LEFT"}, {Title: "MOVING"},
	{Title: "NOT EVICTED", Drop: 1}, {Title: "REPLACEMENT", Drop: 3}, {Title: "SLACK", Drop: 2}, {Title: "WAITS FOR, OR RESULT"},
}

// Table shows the list, in so many columns of a terminal; 0 is no terminal.
func (l List) Table(width int) []string {
	lines := []string{"No node is interrupted, and no record of an interruption stands."}
	if len(l.Interruptions) > 0 {
		lines = console.Table(columns, console.Rows(l.Interruptions, Interruption.row), width)
	}
	if h := l.Held; h != nil {
		lines = append(lines, "", fmt.Sprintf("Held on demand until spot pools are calm: %s, %.1f node-hours",
			console.Count(h.Replacements, "replacement"), h.NodeHours), "")
		rows := console.Rows(h.Oldest[:min(len(h.Oldest), mostLines)], HeldReplacement.row)
		lines = append(lines, console.Table(ofHeld, rows, width)...)
		if more := h.Replacements - mostLines; more > 0 {
			lines = append(lines, fmt.Sprintf("and %d more: -o json lists more", more))
		}
	}
	if len(l.Offerings) == 0 {
		return lines
	}
	rows := console.Rows(l.Offerings[:min(len(l.Offerings), mostLines)], offeringRow)
	lines = append(append(lines, ""), console.Table(ofOfferings, rows, width)...)
	if more := len(l.Offerings) - mostLines; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more: -o json lists all", more))
	}
	return lines
}

// mostLines bounds how many offerings, and how many held replacements, people are shown.
const mostLines = 10

var ofHeld = []console.Column{{Title: "HELD NODE"}, {Title: "FOR", Drop: 1}, {Title: "AT LEAST UNTIL"}, {Title: "BECAUSE"}}

func (h HeldReplacement) row() []console.Cell {
	until := console.None
	if !h.Until.IsZero() {
		until = h.Until.UTC().Format(time.RFC3339)
	}
	return []console.Cell{{Text: h.Node}, {Text: h.For}, {Text: until}, {Text: cmp.Or(h.Why, console.None)}}
}

var ofOfferings = []console.Column{
	{Title: "LOST OFFERING"}, {Title: "ZONE"}, {Title: "POOL", Drop: 2}, {Title: "LOST"}, {Title: "NODE-HOURS", Drop: 1}, {Title: "LAST"},
}

func offeringRow(o offerings.Entry) []console.Cell {
	return []console.Cell{
		{Text: o.Type},
		{Text: o.Zone},
		{Text: cmp.Or(o.Pool, console.None)},
		{Text: fmt.Sprint(o.Lost)},
		{Text: fmt.Sprint(o.Hours)},
		{Text: o.Last.UTC().Format(time.RFC3339)},
	}
}

func (i Interruption) row() []console.Cell {
	cells := []console.Cell{
		{Text: i.Node},
		{Text: cmp.Or(i.kind(), console.None)},
		{Text: cmp.Or(string(i.Phase), console.None), Colour: i.colour()},
		{Text: i.timeLeft()},
		{Text: i.moving()},
		{Text: i.notEvicted()},
		{Text: replacementText(i.Replacement)},
		{Text: duration(i.SlackSeconds)},
	}
	last := i.WaitsFor
	if i.Over {
		last = cmp.Or(i.Result, console.None)
		if i.WaitsFor != "" {
			last += "; waits for " + i.WaitsFor
		}
	}
	return append(cells, console.Cell{Text: cmp.Or(last, console.None)})
}

// kind says first that it is a rehearsal: a text that is too long is cut at its end.
func (i Interruption) kind() string {
	if i.Rehearsal {
		return "rehearsal of " + string(i.Kind)
	}
	return string(i.Kind)
}

// timeLeft is the time until the deadline, in words.
func (i Interruption) timeLeft() string {
	if i.SecondsLeft != nil && *i.SecondsLeft < 0 {
		return "past"
	}
	return duration(i.SecondsLeft)
}

// colour shows what needs attention.
func (i Interruption) colour() console.Colour {
	switch {
	case i.Kind == "", i.Phase == interruption.DeadlineReached, i.Pods.Left+i.Pods.Forced+i.Pods.Truncated > 0:
		return console.Bad
	case i.Over:
		return console.Good
	case i.Phase == interruption.Waiting:
		return ""
	}
	return console.Notable
}

// moving is how many pods of all that had to leave are still to leave.
func (i Interruption) moving() string {
	p := i.Pods
	switch {
	case i.Over:
		return fmt.Sprintf("0/%d", p.Total)
	case p.Here == nil && p.Total == 0:
		return console.None
	case p.Here == nil:
		return fmt.Sprintf("?/%d", p.Total)
	}
	return fmt.Sprintf("%d/%d", *p.Here, max(p.Total, *p.Here))
}

func (i Interruption) notEvicted() string {
	if !i.Over {
		return console.None
	}
	return fmt.Sprint(i.Pods.Left)
}

func replacementText(r *interruption.Replacement) string {
	switch {
	case r == nil:
		return console.None
	case r.State == provisioner.StateFailed, r.State == provisioner.StateUnsupported:
		return "none: " + cmp.Or(r.Reason, r.State)
	}
	return cmp.Or(r.Name, r.Backend) + " " + r.State
}

// duration is a number of seconds as people say it.
func duration(seconds *float64) string {
	if seconds == nil {
		return console.None
	}
	return console.Duration(time.Duration(*seconds * float64(time.Second)))
}

// Lines shows the status of a node to people, in so many columns of a terminal; 0 is no terminal.
func (s Node) Lines(now time.Time, width int) []string {
	if s.Record == nil && s.WaitsFor == "" {
		return append([]string{"No record of an interruption stands on node " + s.Node + "."}, s.eventLines(width)...)
	}
	row := List{Interruptions: []Interruption{s.Interruption}}.Table(width)
	return slices.Concat(row, s.podLines(now, width), s.eventLines(width), s.recordLines())
}

// recordLines are the record as it is on the Node, as YAML.
func (s Node) recordLines() []string {
	if s.Record == nil {
		return nil
	}
	var text strings.Builder
	_ = console.YAML.Write(&text, s.Record) // it was read from JSON, so this cannot fail
	return append([]string{""}, strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")...)
}

// podLines are the pods that have to leave.
func (s Node) podLines(now time.Time, width int) []string {
	if len(s.OnNode) == 0 {
		return nil
	}
	rows := console.Rows(s.OnNode, func(p Pod) []console.Cell {
		by, why := console.None, p.WaitsFor
		if p.By != nil {
			by = "now"
			if left := p.By.Sub(now); left > 0 {
				by = "in " + console.Duration(left)
			}
		}
		if p.Refusal != "" {
			why += "; refused: " + p.Refusal
		}
		if p.NoSurge != "" && p.Next == plan.Hold {
			why += "; not surged: " + p.NoSurge
		}
		return []console.Cell{
			{Text: p.Namespace + "/" + p.Name},
			{Text: string(p.Next)},
			{Text: by},
			{Text: fmt.Sprintf("%d s", p.GraceSeconds)},
			{Text: why},
		}
	})
	columns := []console.Column{{Title: "POD"}, {Title: "NEXT"}, {Title: "AT THE LATEST"}, {Title: "GRACE"}, {Title: "WHY"}}
	lines := append([]string{""}, console.Table(columns, rows, width)...)
	return append(lines, "(planned with "+s.InForce+")")
}

// eventLines are the Events about the Node.
func (s Node) eventLines(width int) []string {
	if len(s.Events) == 0 {
		return nil
	}
	rows := console.Rows(s.Events, func(e Event) []console.Cell {
		reason := console.Cell{Text: e.Reason}
		if e.Type == corev1.EventTypeWarning {
			reason.Colour = console.Notable
		}
		return []console.Cell{{Text: e.At.UTC().Format(time.RFC3339)}, reason, {Text: e.Text}}
	})
	return append([]string{""}, console.Table([]console.Column{{Title: "AT"}, {Title: "EVENT"}, {Title: "TEXT"}}, rows, width)...)
}
