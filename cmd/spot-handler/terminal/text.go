package terminal

import (
	"strings"
	"time"
	"unicode/utf8"
)

// Bar shows how much of the whole is left, in so many columns and two brackets.
func Bar(left, whole time.Duration, columns int) string {
	full := 0
	if whole > 0 {
		full = min(columns, int(time.Duration(columns)*max(0, left)/whole))
	}
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", columns-full) + "]"
}

// Colour is how a text stands out on a terminal; the zero value is not at all.
type Colour string

// The colours, by what they tell.
const (
	Good    Colour = "\x1b[32m"
	Notable Colour = "\x1b[33m"
	Bad     Colour = "\x1b[31m"

	plain = "\x1b[0m"
)

// Paint gives a text a colour.
func (c Colour) Paint(text string) string {
	if c == "" {
		return text
	}
	return own(string(c)) + text + own(plain)
}

// Cut shortens a text to so many columns. What sets colours takes none.
func Cut(text string, columns int) string {
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
