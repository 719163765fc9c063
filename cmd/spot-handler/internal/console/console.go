// Package console prints what the program has to say: tables, JSON and YAML, and on a terminal lines
// that change. All output passes through it, so nothing that somebody else wrote controls a terminal.
//
// It decides nothing, and knows nothing of interruptions.
package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// Format is how a command prints what it found.
type Format string

// The formats: one for people, two for programs.
const (
	TableFormat Format = "table"
	JSON        Format = "json"
	YAML        Format = "yaml"
)

// Formats lists the names of all formats.
func Formats() []string { return []string{string(TableFormat), string(JSON), string(YAML)} }

// Write prints a value as JSON or YAML.
func (f Format) Write(w io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	text = escaped(text)
	if err == nil && f == YAML {
		text, err = yaml.JSONToYAML(text)
		text = []byte("---\n" + strings.TrimSuffix(string(text), "\n"))
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", f, err)
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// plainWord is one that a shell takes as it stands.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// Command is a line for a shell, whatever is in its words.
func Command(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		if quoted[i] = word; !plainWord.MatchString(word) {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// escaped is JSON with every character escaped that controls a terminal: encoding/json leaves DEL,
// the C1 controls and those of the direction of text as they are. They stand in strings only.
// In YAML the output puts U+FFFD in their place.
func escaped(text []byte) []byte {
	if bytes.IndexFunc(text, Controls) < 0 {
		return text
	}
	var b []byte
	for _, r := range string(text) {
		if Controls(r) {
			b = fmt.Appendf(b, `\u%04x`, r)
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

// None stands for what there is not.
const None = "-"

// Count says how many there are of what.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Some returns the first entries of a list, and how many more there are.
func Some(list []string, enough int) []string {
	if more := len(list) - enough; more > 0 {
		return append(list[:enough:enough], fmt.Sprintf("%d more", more))
	}
	return list
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
	// Drop says in which order columns are left out if a terminal is too narrow: 1 goes first; 0
	// stays.
	Drop int
}

// Cell is one text in a table.
type Cell struct {
	Text   string
	Colour Colour // on a terminal only
}

// Rows returns a row for each element of a list.
func Rows[T any](of []T, row func(T) []Cell) [][]Cell {
	all := make([][]Cell, len(of))
	for i, one := range of {
		all[i] = row(one)
	}
	return all
}

// leastOfLast is how much of the last column, which has the longest texts, has to be visible. Other
// columns are left out until it is.
const leastOfLast = 24

// gap is the number of spaces between two texts.
const gap = 2

// Table aligns rows below their titles. What does not fit into so many columns of a terminal is left
// out or cut, starting with empty columns. 0 is no terminal: then everything is there, and nothing is
// coloured.
func Table(columns []Column, rows [][]Cell, width int) []string {
	titles := make([]Cell, len(columns))
	for i, c := range columns {
		titles[i].Text = c.Title
	}
	rows = append([][]Cell{titles}, rows...)
	widths := make([]int, len(columns))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], Width(cell.Text))
		}
	}
	if width > 0 {
		drop(columns, rows[1:], widths, width)
	}
	lines := make([]string, len(rows))
	for n, row := range rows {
		lines[n] = align(row, widths, width)
	}
	return lines
}

// drop sets the width of columns that are left out to 0.
func drop(columns []Column, rows [][]Cell, widths []int, width int) {
	last := len(columns) - 1
	before := 0 // what the columns before the last take
	for _, w := range widths[:last] {
		before += w + gap
	}
	leave := func(i int) { before, widths[i] = before-widths[i]-gap, 0 }
	if before+widths[last] > width {
		for i, c := range columns[:last] {
			if c.Drop > 0 && !slices.ContainsFunc(rows, func(row []Cell) bool { return row[i].Text != "" && row[i].Text != None }) {
				leave(i)
			}
		}
	}
	for before+min(widths[last], leastOfLast) > width {
		next := -1
		for i, c := range columns[:last] {
			if c.Drop > 0 && widths[i] > 0 && (next < 0 || c.Drop < columns[next].Drop) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		leave(next)
	}
}

func align(row []Cell, widths []int, width int) string {
	var b strings.Builder
	spaces := 0
	for i, cell := range row {
		if widths[i] == 0 {
			continue
		}
		text := cell.Text
		if width > 0 {
			text = cell.Colour.paint(text)
		}
		b.WriteString(strings.Repeat(" ", spaces) + text)
		spaces = widths[i] - Width(cell.Text) + gap
	}
	if width > 0 {
		return cut(b.String(), width)
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
		case width > 0 && Width(line)+1+Width(word) > width:
			lines, line = append(lines, line), start+word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
