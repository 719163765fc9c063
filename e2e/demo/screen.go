package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Control sequences that every terminal of recent decades knows.
// https://man7.org/linux/man-pages/man4/console_codes.4.html
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	clearLine  = "\x1b[2K"
	clearBelow = "\x1b[J"
	upLines    = "\x1b[%dA\r"
)

// screen is where the demo is shown. On a terminal the view is redrawn in place, and
// other output scrolls above it; elsewhere the changes are lines. It is safe for
// concurrent use.
type screen struct {
	mu    sync.Mutex
	out   io.Writer
	size  func() (columns, lines int) // nil: no terminal
	begun time.Time

	shown []string // the view on the terminal
	last  state
	ended bool
}

func newScreen(out *os.File, plain bool) *screen {
	s := &screen{out: out, begun: time.Now()}
	fd := int(out.Fd())
	if !plain && term.IsTerminal(fd) && os.Getenv("TERM") != "dumb" {
		s.size = func() (int, int) {
			columns, lines, err := term.GetSize(fd)
			if err != nil || columns <= 0 || lines <= 0 {
				return width, 24
			}
			return columns, lines
		}
	}
	return s
}

// step says what the demo is doing, if that may take long.
func (s *screen) step(format string, args ...any) {
	s.print([]string{fmt.Sprintf("%7.1f s  %s", time.Since(s.begun).Seconds(), fmt.Sprintf(format, args...))})
}

// print writes lines that stay.
func (s *screen) print(lines []string) { _, _ = s.Write([]byte(strings.Join(lines, "\n") + "\n")) }

// Write writes text that stays, whole lines of it.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown == nil {
		return s.out.Write(p)
	}
	lines := s.shown
	fmt.Fprint(s.out, s.home(), clearBelow, string(p))
	s.shown = nil
	s.show(lines)
	return len(p), nil
}

// draw shows a state.
func (s *screen) draw(st state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	if s.size == nil {
		if s.last.notice.IsZero() {
			fmt.Fprintln(s.out, "pods: # ready, ~ starting, x stopping, . without a node")
		}
		for _, line := range changes(s.last, st) {
			fmt.Fprintln(s.out, line)
		}
		s.last = st
		return
	}
	s.show(view(st))
}

// show replaces the lines on the screen, as far as the new ones fit. It is one write, so
// there is no flicker.
func (s *screen) show(lines []string) {
	columns, rows := s.size()
	lines = lines[:min(len(lines), max(1, rows-1))]
	var b strings.Builder
	b.WriteString(hideCursor + s.home())
	for _, line := range lines {
		b.WriteString(clearLine + cut(line, columns) + "\n")
	}
	b.WriteString(clearBelow)
	s.shown = lines
	_, _ = io.WriteString(s.out, b.String())
}

// home moves to the first line that is shown.
func (s *screen) home() string {
	if len(s.shown) == 0 {
		return "\r"
	}
	return fmt.Sprintf(upLines, len(s.shown))
}

// end leaves the last view where it is, and gives the cursor back. Nothing is drawn after
// that.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.shown != nil {
		fmt.Fprint(s.out, showCursor)
		s.shown = nil
	}
}
