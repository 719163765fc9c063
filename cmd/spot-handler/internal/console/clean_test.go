package console

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// hostile are texts that somebody else has written into an object.
var hostile = map[string]string{
	"web\n\tdone — grün 日本":                   "web\n\tdone — grün 日本",
	"\x1b]0;owned\x07":                        "�]0;owned�",
	"\x1b]52;c;cm0gLXJm\x1b\\":                "�]52;c;cm0gLXJm�\\",
	"\x1b[31mcalm\x1b[0m\x1b[5A":              "�[31mcalm�[0m�[5A",
	"kept\rgone":                              "kept�gone",
	"\u009b5A\u0085 \x7f":                     "�5A� �",
	"\xc2\x9b31m half \xe2\x80":               "�31m half ��",
	"\x9b31m":                                 "�31m",
	"\u202egnp.exe\u2066\u2069\u200f":         "�gnp.exe���",
	"\u2028new\u2029":                         "�new�",
	"\ufdd0AAAAAAAAAAAAAAAAAAAAAAAAAA\x1b[2J": "�AAAAAAAAAAAAAAAAAAAAAAAAAA�[2J",
}

// What controls a terminal and is not ours reaches none, nor a file that is shown on one later.
func TestOutput(t *testing.T) {
	for text, want := range hostile {
		for _, on := range []*os.File{nil, os.Stdout} {
			var out strings.Builder
			n, err := (&Output{w: &out, terminal: on}).Write([]byte(text))
			if out.String() != want || n != len(text) || err != nil {
				t.Errorf("%q on a terminal %v: %q, want %q; %d, %v", text, on != nil, &out, want, n, err)
			}
		}
	}
	for on, want := range map[*os.File]string{nil: "bad", os.Stdout: string(Bad) + "bad" + plain} {
		var out strings.Builder
		if _, _ = (&Output{w: &out, terminal: on}).Write([]byte(Bad.paint("bad"))); out.String() != want {
			t.Errorf("painted, on a terminal %v: %q, want %q", on != nil, &out, want)
		}
	}
}

// A line break in a text begins no line of its own.
func TestPrint(t *testing.T) {
	var out strings.Builder
	if err := NewScreen(&out).Print("a", "b\nc: run this"); err != nil || out.String() != "a\nb�c: run this\n" {
		t.Errorf("%q, %v", &out, err)
	}
}

func FuzzOutput(f *testing.F) {
	for text := range hostile {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var out strings.Builder
		_, _ = (&Output{w: &out, terminal: os.Stdout}).Write([]byte(text))
		if strings.ContainsFunc(out.String(), Controls) || !utf8.ValidString(out.String()) {
			t.Errorf("%q becomes %q", text, &out)
		}
		if utf8.ValidString(text) && utf8.RuneCountInString(text) != utf8.RuneCountInString(out.String()) {
			t.Errorf("%q becomes %q, which is not as wide", text, &out)
		}
	})
}
