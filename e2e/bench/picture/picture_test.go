package picture

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// largest is how big a picture may be: a page should show it at once.
const largest = 40_000

func example() Picture {
	return Picture{
		Title: "Pods <of> a service & more", Subtitle: "Seven of them.", Description: "They were \"ready\".",
		X: Axis{"seconds", -6, 126}, Y: Axis{"ready pods", 16, 38}, Base: 28,
		Marks: []Mark{{0, "notice"}, {2, "right after it"}, {120, "the end"}},
		Lines: []Line{
			{Name: "at once", Colour: Vermilion, Figure: "a lot", Steps: true, Points: []Point{{-6, 28}, {1.2, 21}, {53.4, 28}, {120, 28}}},
			{Name: "wait", Colour: Blue, Figure: "some", Steps: true, Points: []Point{{-6, 28}, {41.3, 21}, {51.4, 28}, {120, 28}}},
			{Name: "surge", Colour: Green, Figure: "nothing", Strong: true, Steps: true, Points: []Point{{-6, 28}, {50.5, 35}, {52, 28}, {120, 28}}},
		},
		Notes: []string{"A note.", "Another."},
	}
}

// TestSVG checks what stands in the file, as a program that reads XML sees it.
func TestSVG(t *testing.T) {
	p := example()
	text := draw(t, p)
	elements, words := read(t, text)
	if n := elements["path.line"]; n != len(p.Lines) {
		t.Errorf("%d lines are drawn, want %d", n, len(p.Lines))
	}
	if n := elements["path.area"]; n != 2 {
		t.Errorf("%d areas are drawn, want 2: one line is never below the base", n)
	}
	if n := elements["path.mark"]; n != len(p.Marks) {
		t.Errorf("%d marks are drawn, want %d", n, len(p.Marks))
	}
	want := []string{p.Title, p.Subtitle, p.Description, p.X.Label, p.Y.Label, "28", "120"}
	for _, line := range p.Lines {
		want = append(want, line.Name, line.Figure)
	}
	for _, m := range p.Marks {
		want = append(want, m.Text)
	}
	for _, w := range append(want, p.Notes...) {
		if !slices.Contains(words, w) {
			t.Errorf("%q is missing among %q", w, words)
		}
	}
	if again := draw(t, p); !bytes.Equal(again, text) {
		t.Error("the same picture is drawn differently")
	}
}

// TestCommitted checks the pictures of the documents.
func TestCommitted(t *testing.T) {
	files, err := filepath.Glob("../../../deploy/docs/*.svg")
	if err != nil || len(files) == 0 {
		t.Fatalf("find pictures: %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		read(t, text)
		if elements, _ := read(t, text); elements["path.line"] < 2 {
			t.Errorf("%s has %d lines", file, elements["path.line"])
		}
	}
}

func draw(t *testing.T, p Picture) []byte {
	t.Helper()
	text, err := p.SVG()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// read counts the elements by their names and first classes, and collects their texts. It
// checks what a page needs of any picture.
func read(t *testing.T, text []byte) (elements map[string]int, words []string) {
	t.Helper()
	if len(text) > largest {
		t.Errorf("the picture has %d bytes, want %d at most", len(text), largest)
	}
	elements = map[string]int{}
	for decoder := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("read picture: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			name := token.Name.Local
			for _, a := range token.Attr {
				switch {
				case a.Name.Local == "class":
					name += "." + strings.Fields(a.Value)[0]
				case a.Name.Local == "href" || strings.Contains(a.Value, "url("):
					t.Errorf("<%s> refers to %q", name, a.Value)
				case name == "svg" && a.Name.Local == "role" && a.Value != "img":
					t.Errorf("the role is %q", a.Value)
				case strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf"):
					t.Errorf("<%s> has %s=%q", name, a.Name.Local, a.Value)
				}
			}
			elements[name]++
		case xml.CharData:
			if word := strings.TrimSpace(string(token)); word != "" {
				words = append(words, word)
			}
		}
	}
	for _, name := range []string{"svg", "title", "desc", "style"} {
		if elements[name] != 1 {
			t.Errorf("there are %d of <%s>", elements[name], name)
		}
	}
	for name := range elements {
		if slices.Contains([]string{"script", "image", "foreignObject", "use"}, name) {
			t.Errorf("there is a <%s>", name)
		}
	}
	if !bytes.Contains(text, []byte("prefers-color-scheme:dark")) || !bytes.Contains(text, []byte("viewBox=")) {
		t.Error("the picture has no dark scheme or no viewBox")
	}
	return elements, words
}

// TestMarksAreApart has marks so close that their texts would overlap in one row.
func TestMarksAreApart(t *testing.T) {
	l, err := example().layout()
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range l.Marked {
		if m.box.y+m.box.h > l.Plot.Top {
			t.Errorf("the mark %q is in the plot", m.Text)
		}
		for _, other := range l.Marked[:i] {
			if m.box.overlaps(other.box) {
				t.Errorf("the marks %q and %q overlap", m.Text, other.Text)
			}
		}
	}
}

func TestWhatCannotBeDrawn(t *testing.T) {
	for name, change := range map[string]func(*Picture){
		"no line":               func(p *Picture) { p.Lines = nil },
		"a title too long":      func(p *Picture) { p.Title = strings.Repeat("long ", 30) },
		"a note too long":       func(p *Picture) { p.Notes = []string{strings.Repeat("long ", 30)} },
		"a line without points": func(p *Picture) { p.Lines[0].Points = nil },
		"an axis of no length":  func(p *Picture) { p.X.To = p.X.From },
	} {
		p := example()
		change(&p)
		if _, err := p.SVG(); err == nil {
			t.Errorf("%s: was drawn", name)
		}
	}
}

// TestWriteKeepsTheOld: a picture that cannot be drawn leaves the one that is there.
func TestWriteKeepsTheOld(t *testing.T) {
	file := filepath.Join(t.TempDir(), "docs", "a.svg")
	if err := example().Write(file); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := (Picture{Title: "nothing"}).Write(file); err == nil {
		t.Error("a picture of nothing was written")
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the picture was changed: %v", err)
	}
	if files, err := os.ReadDir(filepath.Dir(file)); err != nil || len(files) != 1 {
		t.Errorf("there are files besides: %v, %v", files, err)
	}
}
