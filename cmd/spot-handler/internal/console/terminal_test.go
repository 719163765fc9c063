package console

import (
	"os"
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", ""}, {"abc", "abc"}, {"abcd", "abcd"}, {"abcde", "abc…"}, {"äöüß€", "äöü…"},
		{Bad.paint("abcd"), Bad.paint("abcd")},
		{Bad.paint("abcde"), own(string(Bad)) + "abc…" + own(plain)},
	} {
		if got := cut(tt.text, 4); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.text, got, tt.want)
		}
	}
}

// What is no terminal gets what is written, and nothing that can be redrawn.
func TestNoTerminal(t *testing.T) {
	var out strings.Builder
	s := NewScreen(&out)
	s.Show([]string{"drawn"})
	if _, err := s.Write([]byte("written\n")); err != nil {
		t.Error(err)
	}
	s.End()
	if out.String() != "written\n" || s.Live() || s.Columns() != 0 {
		t.Errorf("%q, live %v, %d columns", &out, s.Live(), s.Columns())
	}
}

// On a terminal what stays scrolls above what is redrawn, lines are cut, and the cursor comes
// back at the end.
func TestRedraw(t *testing.T) {
	var out strings.Builder
	s := &Screen{out: &Output{w: &out, terminal: os.Stdout}, size: func() (int, int) { return 6, 3 }}
	s.Show([]string{"first line", "second", "third does not fit"})
	s.Show([]string{"again"})
	if _, err := s.Write([]byte("stays\n")); err != nil {
		t.Error(err)
	}
	s.End()
	s.Show([]string{"late"})
	s.End() // as a deferred call, too
	want := hideCursor + toStart + clearLine + "first…\n" + clearLine + "second\n" + clearBelow +
		hideCursor + "\x1b[2F" + clearLine + "again\n" + clearBelow +
		"\x1b[1F" + clearBelow + "stays\n" + hideCursor + toStart + clearLine + "again\n" + clearBelow + showCursor
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}
