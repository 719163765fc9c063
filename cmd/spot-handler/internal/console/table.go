package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"spot-handler/cmd/spot-handler/terminal"
)

// None stands for what there is not.
const None = "-"

// Count says how many there are of what.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Duration is as people say it.
func Duration(d time.Duration) string {
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

// Column is a column of a table.
type Column struct {
	Title string
	// Least is how narrow the column can become where the terminal is too narrow for all; zero
	// if its texts are never cut.
	Least int
	// Drop is its place among the columns that are left out where that is still too wide: 1 goes
	// first; zero stays.
	Drop int
}

// Cell is one text in a table.
type Cell struct {
	Text   string
	Colour terminal.Colour // on a terminal only
}

// Table aligns rows below their titles. What does not fit into so many columns of a terminal is
// cut or left out, first of all columns in which there is nothing. 0 is no terminal: then everything
// is there, and nothing coloured.
func Table(columns []Column, rows [][]Cell, width int) []string {
	titles := make([]Cell, len(columns))
	for i, c := range columns {
		titles[i].Text = c.Title
	}
	rows = append([][]Cell{titles}, rows...)
	widths := make([]int, len(columns))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], terminal.Width(cell.Text))
		}
	}
	if width > 0 && !fitsWhole(widths, width) {
		for i, c := range columns {
			if c.Drop > 0 && saysNothing(rows[1:], i) {
				widths[i] = 0
			}
		}
	}
	for width > 0 && !fit(columns, widths, width) {
		next := -1
		for i, c := range columns {
			if c.Drop > 0 && widths[i] > 0 && (next < 0 || c.Drop < columns[next].Drop) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		widths[next] = 0
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		lines[n] = align(row, widths, width > 0)
	}
	return lines
}

// saysNothing reports whether no row has anything in the column.
func saysNothing(rows [][]Cell, column int) bool {
	return !slices.ContainsFunc(rows, func(row []Cell) bool { return row[column].Text != "" && row[column].Text != "-" })
}

// gap is the number of columns between two texts.
const gap = 2

// fitsWhole reports whether columns of these widths fit.
func fitsWhole(widths []int, width int) bool {
	sum := -gap
	for _, w := range widths {
		sum += w + gap
	}
	return sum <= width
}

// fit narrows the widest columns that can be, until all fit into the width. It reports whether
// they do; if they cannot, it narrows none. A column of no width is left out.
func fit(columns []Column, widths []int, width int) bool {
	narrow := slices.Clone(widths)
	for {
		sum, widest := -gap, -1
		for i, w := range narrow {
			if w == 0 {
				continue
			}
			sum += w + gap
			if least := columns[i].Least; least > 0 && w > least && (widest < 0 || w > narrow[widest]) {
				widest = i
			}
		}
		if sum <= width {
			copy(widths, narrow)
			return true
		}
		if widest < 0 {
			return false
		}
		narrow[widest]--
	}
}

func align(row []Cell, widths []int, live bool) string {
	var b strings.Builder
	spaces := 0
	for i, cell := range row {
		if widths[i] == 0 {
			continue
		}
		text := cell.Text
		if live {
			text = terminal.Cut(text, widths[i])
		}
		taken := terminal.Width(text)
		if live {
			text = cell.Colour.Paint(text)
		}
		b.WriteString(strings.Repeat(" ", spaces) + text)
		spaces = widths[i] - taken + gap
	}
	return b.String()
}

// Wrap breaks a text into lines of a terminal, each with the same start; 0 is no terminal.
func Wrap(text, start string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = start + word
		case width > 0 && terminal.Width(line)+1+terminal.Width(word) > width:
			lines, line = append(lines, line), start+word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
