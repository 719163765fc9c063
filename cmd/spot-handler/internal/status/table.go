package status

import (
	"cmp"
	"fmt"
	"time"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/terminal"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

var columns = []console.Column{
	{Title: "NODE", Least: 12}, {Title: "KIND", Least: 8, Drop: 4}, {Title: "PHASE"}, {Title: "TIME LEFT"}, {Title: "MOVING"},
	{Title: "LEFT BEHIND", Drop: 1}, {Title: "REPLACEMENT", Least: 12, Drop: 3}, {Title: "SLACK", Drop: 2}, {Title: "WAITS FOR, OR RESULT", Least: 24},
}

// none stands for what there is not.
const none = "-"

// bar is how wide the bar of the time left is, in a table that is redrawn on a terminal that is
// wide enough.
const (
	bar        = 10
	wideEnough = 110
)

// Table shows the list, in so many columns of a terminal; 0 is no terminal. A table that is
// redrawn has a bar of the time left.
func (l List) Table(width int, redrawn bool) []string {
	if len(l.Interruptions) == 0 {
		return []string{"No node is interrupted, and no record of an interruption stands."}
	}
	rows := make([][]console.Cell, len(l.Interruptions))
	for i, one := range l.Interruptions {
		rows[i] = one.row(redrawn && width >= wideEnough)
	}
	return console.Table(columns, rows, width)
}

func (i Interruption) row(withBar bool) []console.Cell {
	left := i.timeLeft()
	if withBar && i.SecondsLeft != nil {
		left += " " + i.bar(bar)
	}
	cells := []console.Cell{
		{Text: i.Node}, {Text: orNone(i.kind())}, {Text: orNone(string(i.Phase)), Colour: i.colour()}, {Text: left},
		{Text: i.Pods.moving(i.Over)}, {Text: i.Pods.leftBehind(i.Over)},
		{Text: replacementText(i.Replacement)}, {Text: duration(i.SlackSeconds)},
	}
	last := i.WaitsFor
	if i.Over {
		last = cmp.Or(i.Result, none)
		if i.WaitsFor != "" {
			last += "; waits for " + i.WaitsFor
		}
	}
	return append(cells, console.Cell{Text: orNone(last)})
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

// bar is the time left, of all that there was when EC2 made the announcement.
func (i Interruption) bar(width int) string {
	return terminal.Bar(time.Duration(*i.SecondsLeft*float64(time.Second)), i.Deadline.Sub(*i.Noticed), width)
}

// colour tells what needs a look.
func (i Interruption) colour() terminal.Colour {
	switch {
	case i.Kind == "", i.Phase == interruption.DeadlineReached, i.Pods.Left+i.Pods.Forced+i.Pods.Truncated > 0:
		return terminal.Bad
	case i.Over:
		return terminal.Good
	case i.Phase == interruption.Waiting:
		return ""
	}
	return terminal.Notable
}

// moving is how many pods of all that had to leave are still to leave.
func (p Pods) moving(over bool) string {
	switch {
	case over:
		return fmt.Sprintf("0/%d", p.Total)
	case p.Here == nil && p.Total == 0:
		return none
	case p.Here == nil:
		return fmt.Sprintf("?/%d", p.Total)
	}
	return fmt.Sprintf("%d/%d", *p.Here, max(p.Total, *p.Here))
}

func (p Pods) leftBehind(over bool) string {
	if !over {
		return none
	}
	return fmt.Sprint(p.Left)
}

func replacementText(r *interruption.Replacement) string {
	switch {
	case r == nil:
		return none
	case r.State == provisioner.StateFailed, r.State == provisioner.StateUnsupported:
		return "none: " + cmp.Or(r.Reason, r.State)
	}
	return cmp.Or(r.Name, r.Backend) + " " + r.State
}

func orNone(text string) string { return cmp.Or(text, none) }

// duration is a number of seconds as people say it.
func duration(seconds *float64) string {
	if seconds == nil {
		return none
	}
	d := time.Duration(*seconds * float64(time.Second))
	switch abs := d.Abs(); {
	case abs < 10*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case abs < 2*time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case abs < 48*time.Hour:
		return fmt.Sprintf("%.0f h", d.Hours())
	}
	return fmt.Sprintf("%.0f d", d.Hours()/24)
}
