// Package picture draws what a benchmark has measured: lines over time, as SVG.
//
// A picture is a file of its own, without scripts, fonts or references. It follows the
// reader's light or dark scheme, on a background of its own, as a page may have another
// scheme than the browser. Its text is text. The same figures give the same bytes, and
// similar ones similar bytes, so that a diff shows what has changed.
package picture

import (
	"bytes"
	_ "embed"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// Picture is what there is to see.
type Picture struct {
	Title    string // says what happened
	Subtitle string // says under which conditions
	// Description is for people who do not see the picture.
	Description string
	X, Y        Axis
	Lines       []Line
	Marks       []Mark
	// Base, unless 0, is the value that the lines should keep: what they lack is shaded.
	Base  float64
	Notes []string // stand below
}

// Axis is what a picture shows of the values of one dimension.
type Axis struct {
	Label    string
	From, To float64
}

// Line is one series. Its label stands beside it.
type Line struct {
	Name   string // the label's first line
	Figure string // the label's second line
	Colour Colour
	Points []Point
	// Steps holds a value until the next point; otherwise points are joined.
	Steps bool
	// Strong is for the line that a reader should look at first.
	Strong bool
}

// Point is a measured value.
type Point struct{ X, Y float64 }

// Mark is a moment with a name.
type Mark struct {
	At   float64
	Text string
}

// The picture's own measures, in pixels.
const (
	width       = 800
	margin      = 20.0
	plotHeight  = 300.0
	textSize    = 14.0
	titleSize   = 20.0
	lineHeight  = 18.0
	apart       = 3.0 // between steps with equal values
	lineWidth   = 2.5
	strongWidth = 4.0
	mostTicks   = 9
)

//go:embed picture.svg.tmpl
var source string

var svg = template.Must(template.New("picture.svg").Funcs(template.FuncMap{
	"text": escape, "n": number,
}).Parse(source))

// SVG returns the picture's file.
func (p Picture) SVG() ([]byte, error) {
	l, err := p.layout()
	if err != nil {
		return nil, fmt.Errorf("draw %q: %w", p.Title, err)
	}
	var b bytes.Buffer
	if err := svg.Execute(&b, l); err != nil {
		return nil, fmt.Errorf("draw %q: %w", p.Title, err)
	}
	return b.Bytes(), nil
}

// Write replaces the file by the picture, or leaves it as it is.
func (p Picture) Write(path string) error {
	text, err := p.SVG()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	part := path + ".part"
	if err := os.WriteFile(part, text, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func escape(s string) (string, error) {
	var b strings.Builder
	err := xml.EscapeText(&b, []byte(s))
	return b.String(), err
}
