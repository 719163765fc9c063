package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"spot-handler/cmd/spot-handler/terminal"
)

// screen is where the demo is shown. On a terminal the view is redrawn in place; elsewhere the
// changes are lines.
type screen struct {
	*terminal.Screen
	begun time.Time

	last state // of draw alone
}

func newScreen(out io.Writer, plain bool) *screen {
	s := &screen{Screen: terminal.New(out), begun: time.Now()}
	if plain {
		s.Screen = terminal.Plain(out)
	}
	return s
}

// step says what the demo is doing, if that may take long.
func (s *screen) step(format string, args ...any) {
	s.print([]string{fmt.Sprintf("%7.1f s  %s", time.Since(s.begun).Seconds(), fmt.Sprintf(format, args...))})
}

// print writes lines that stay.
func (s *screen) print(lines []string) { _, _ = s.Write([]byte(strings.Join(lines, "\n") + "\n")) }

// draw shows a state.
func (s *screen) draw(st state) {
	if s.Live() {
		s.Show(view(st))
		return
	}
	if s.last.notice.IsZero() {
		s.print([]string{"pods: # ready, ~ starting, x stopping, . without a node"})
	}
	if lines := changes(s.last, st); len(lines) > 0 {
		s.print(lines)
	}
	s.last = st
}
