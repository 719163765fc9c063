package console

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Output is the one way to standard output and standard error. Much of what a command or a log
// shows was written by somebody else: in annotations, in Events, in the names of owners. A
// terminal would run the control sequences in it, which set its title, fill the clipboard or
// write over other lines. Output puts U+FFFD in the place of every control character but line
// breaks and tabs. Only the sequences of this package pass, and only to a terminal.
type Output struct {
	w        io.Writer
	terminal *os.File // nil: none
}

// NewOutput returns an output to w.
func NewOutput(w io.Writer) *Output {
	if o, ok := w.(*Output); ok {
		return o
	}
	o := &Output{w: w}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		o.terminal = f
	}
	return o
}

// IsTerminal reports whether people read along.
func (o *Output) IsTerminal() bool { return o.terminal != nil }

// mark stands before each control sequence of this package. It is another one in each process, so
// nobody can have written it into an object.
var mark = "\ufdd0" + rand.Text()

// own is a control sequence of this package, which begins with ESC [ and ends with a letter.
func own(sequence string) string { return mark + sequence }

// ownIn is the control sequence of this package with which the text begins, and its length there;
// 0 if it begins with none.
func ownIn(text string) (sequence string, size int) {
	after, ok := strings.CutPrefix(text, mark)
	if !ok {
		return "", 0
	}
	end := strings.IndexFunc(after, unicode.IsLetter) + 1
	return after[:end], len(mark) + end
}

// Controls reports whether a terminal might act on the character, or show what follows in another
// order than it was written in.
func Controls(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// Write writes whole characters: what is half of one is taken for none.
func (o *Output) Write(p []byte) (int, error) {
	if _, err := io.WriteString(o.w, clean(string(p), o.terminal != nil)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// clean is a text without what could control a terminal, except for our own sequences on a live one.
func clean(text string, live bool) string {
	harmless := func(r rune) bool { return r != utf8.RuneError && r != '\ufdd0' && !Controls(r) }
	if strings.IndexFunc(text, func(r rune) bool { return !harmless(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		if sequence, size := ownIn(text); size > 0 {
			if live {
				b.WriteString(sequence)
			}
			text = text[size:]
			continue
		}
		r, size := utf8.DecodeRuneInString(text)
		if !harmless(r) {
			r = utf8.RuneError
		}
		b.WriteRune(r)
		text = text[size:]
	}
	return b.String()
}

// oneLine keeps a text from beginning another line, which would look like one of ours.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' {
			return utf8.RuneError
		}
		return r
	}, text)
}

// Colour is how a text stands out on a terminal; the zero value is not at all.
type Colour string

// The colours, by what they mean.
const (
	Good    Colour = "\x1b[32m"
	Notable Colour = "\x1b[33m"
	Bad     Colour = "\x1b[31m"

	plain = "\x1b[0m"
)

// paint gives a text a colour.
func (c Colour) paint(text string) string {
	if c == "" {
		return text
	}
	return own(string(c)) + text + own(plain)
}

// cut shortens a text to so many columns. What sets colours takes none.
func cut(text string, columns int) string {
	if Width(text) <= columns {
		return text
	}
	n, end := 0, ""
	for i := 0; i < len(text); {
		size, wide := next(text[i:])
		if !wide {
			end = own(plain)
		} else if n++; n >= columns {
			return text[:i] + "…" + end
		}
		i += size
	}
	return text
}

// Width is how many columns a text takes.
func Width(text string) int {
	n := 0
	for i := 0; i < len(text); {
		size, wide := next(text[i:])
		if wide {
			n++
		}
		i += size
	}
	return n
}

// next is the length in bytes of what a text begins with: a character, which takes a column, or
// a sequence that sets colours, which takes none.
func next(text string) (size int, wide bool) {
	if _, size = ownIn(text); size > 0 {
		return size, false
	}
	_, size = utf8.DecodeRuneInString(text)
	return size, true
}

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

// Screen is where lines are shown. On a terminal they are redrawn in place, and other output scrolls above
// them; elsewhere nothing can be redrawn, and the caller prints what is new. It is safe for concurrent use.
type Screen struct {
	mu   sync.Mutex
	out  *Output
	size func() (columns, rows int) // 0 without a terminal

	shown []string // what can be redrawn
	ended bool
}

// NewScreen returns a screen on out, which is live if that is a terminal.
func NewScreen(out io.Writer) *Screen {
	s := &Screen{out: NewOutput(out), size: func() (int, int) { return 0, 0 }}
	if f := s.out.terminal; f != nil {
		s.size = func() (int, int) {
			columns, rows, _ := term.GetSize(int(f.Fd())) // negative with an error
			return cmp.Or(max(columns, 0), usualColumns), cmp.Or(max(rows, 0), usualRows)
		}
	}
	return s
}

// Live reports whether lines can be redrawn.
func (s *Screen) Live() bool { return s.out.IsTerminal() }

// Columns is how wide the terminal is; 0 if there is none.
func (s *Screen) Columns() int {
	columns, _ := s.size()
	return columns
}

// Rows is how many lines can be redrawn.
func (s *Screen) Rows() int {
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
	if s.Live() && !s.ended {
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
		b.WriteString(own(clearLine) + cut(oneLine(line), columns) + "\n")
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
