// Package terminal shows lines that change. On a terminal they are redrawn in place, and other
// output scrolls above them; elsewhere nothing can be redrawn, and the caller prints what is new.
//
// The command line and the demo draw with it. It knows nothing of interruptions.
package terminal

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/term"
)

// Control sequences that every terminal of recent decades knows.
// https://man7.org/linux/man-pages/man4/console_codes.4.html
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	clearLine  = "\x1b[2K"
	clearBelow = "\x1b[J"
	toStart    = "\x1b[G"
	upLines    = "\x1b[%dF"
)

// The size of a terminal that does not say its own.
const (
	usualColumns = 80
	usualRows    = 24
)

// Screen is where lines are shown. It is safe for concurrent use.
type Screen struct {
	mu   sync.Mutex
	out  *Output
	size func() (columns, rows int) // nil: no terminal

	shown []string // what can be redrawn
	ended bool
}

// New returns a screen on out, which is live if that is a terminal.
func New(out io.Writer) *Screen {
	s := &Screen{out: NewOutput(out)}
	f := s.out.terminal
	if f == nil {
		return s
	}
	s.size = func() (int, int) {
		columns, rows, err := term.GetSize(int(f.Fd()))
		if err != nil || columns <= 0 || rows <= 0 {
			return usualColumns, usualRows
		}
		return columns, rows
	}
	return s
}

// Live reports whether lines can be redrawn.
func (s *Screen) Live() bool { return s.size != nil }

// Columns is how wide the terminal is; 0 if there is none.
func (s *Screen) Columns() int {
	if s.size == nil {
		return 0
	}
	columns, _ := s.size()
	return columns
}

// Rows is how many lines can be redrawn; 0 if there is no terminal.
func (s *Screen) Rows() int {
	if s.size == nil {
		return 0
	}
	_, rows := s.size()
	return redrawn(rows)
}

// redrawn is all rows but that of the cursor.
func redrawn(rows int) int { return max(1, rows-1) }

// Write writes text that stays, whole lines of it.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown == nil {
		return s.out.Write(p)
	}
	lines := s.shown
	fmt.Fprint(s.out, s.home(), own(clearBelow), string(p))
	s.shown = nil
	s.show(lines)
	return len(p), nil
}

// Print writes lines that stay.
func (s *Screen) Print(lines ...string) error {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(oneLine(line) + "\n")
	}
	_, err := s.Write([]byte(b.String()))
	return err
}

// Show replaces the lines that were shown before. It does nothing on a screen that is not live,
// or has ended.
func (s *Screen) Show(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size != nil && !s.ended {
		s.show(lines)
	}
}

// show draws as many lines as fit. It is one write, so there is no flicker.
func (s *Screen) show(lines []string) {
	columns, rows := s.size()
	lines = lines[:min(len(lines), redrawn(rows))]
	var b strings.Builder
	b.WriteString(own(hideCursor) + s.home())
	for _, line := range lines {
		b.WriteString(own(clearLine) + Cut(oneLine(line), columns) + "\n")
	}
	b.WriteString(own(clearBelow))
	s.shown = lines
	_, _ = io.WriteString(s.out, b.String())
}

// home moves to the first line that is shown.
func (s *Screen) home() string {
	if len(s.shown) == 0 {
		return own(toStart)
	}
	return own(fmt.Sprintf(upLines, len(s.shown)))
}

// End leaves the last lines where they are, and gives the cursor back. Nothing is shown after
// that.
func (s *Screen) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.shown != nil {
		fmt.Fprint(s.out, own(showCursor))
		s.shown = nil
	}
}
