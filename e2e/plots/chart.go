package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"math"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// chart is what a benchmark has recorded: counts over time, each of which holds until the next.
type chart struct {
	Title       string // says what happened
	Subtitle    string // says under which conditions
	Description string // for people who do not see the picture
	X, Y        axis
	Base        float64 // the count that should be kept: what the lines lack is shaded
	Marks       []struct {
		At   float64
		Text string
	}
	Lines []line
}

type axis struct {
	Label    string
	From, To float64
	Step     float64 // between ticks
}

type line struct {
	Name   string
	Figure string // stands beside the name
	Strong bool   // look at this one first
	Nodes  bool   // what it counts is not what should be kept
	Points [][2]float64

	lower float64 // so much lower it is drawn
}

// The picture's measures, in points.
const (
	width, height = 800, 510
	margin        = 20
	header        = 74 // for the titles
	legendHeight  = 22 // of each line
	textSize      = 14

	// apart is how far apart lines with equal counts are, of the height of the axis.
	apart = 0.01
)

// The colours, of a light page; see dark.go for others.
var (
	page   = color.RGBA{0xff, 0xff, 0xff, 0xff}
	ink    = color.RGBA{0x1f, 0x23, 0x28, 0xff}
	muted  = color.RGBA{0x59, 0x63, 0x6e, 0xff}
	grid   = color.RGBA{0xe4, 0xe8, 0xec, 0xff}
	series = []color.RGBA{{0xb8, 0x41, 0x0b, 0xff}, {0x8a, 0x61, 0x00, 0xff}, {0x0b, 0x65, 0xa8, 0xff}, {0x00, 0x79, 0x5a, 0xff}}
)

// shade is a colour of which a tenth is seen. It is rounded up, as vgsvg rounds down when it takes the two apart.
type shade color.RGBA

func (s shade) RGBA() (r, g, b, a uint32) {
	const seen = 0xffff / 10
	part := func(of uint8) uint32 { return (uint32(of)*seen + 254) / 255 }
	return part(s.R), part(s.G), part(s.B), seen
}

func (c chart) svg() ([]byte, error) {
	canvas := vgsvg.New(width, height)
	all := draw.New(canvas)
	all.SetColor(page)
	all.Fill(all.Rectangle.Path())
	c.drawTitles(all)
	footer := vg.Length(len(c.Lines))*legendHeight + margin
	if err := c.drawLegend(draw.Crop(all, margin, -margin, 0, footer-height)); err != nil {
		return nil, err
	}
	p, err := c.plot()
	if err != nil {
		return nil, err
	}
	p.Draw(draw.Crop(all, margin, -margin, footer+margin/2, -header))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, err
	}
	return themed(b.Bytes(), c.Title, c.Description)
}

func style(size vg.Length, c color.Color) text.Style {
	return text.Style{Color: c, Font: font.From(plot.DefaultFont, size), Handler: plot.DefaultTextHandler}
}

func (c chart) drawTitles(all draw.Canvas) {
	bold := style(20, ink)
	bold.Font.Variant, bold.Font.Weight = "Sans", xfont.WeightSemiBold
	all.FillText(bold, vg.Point{X: margin, Y: height - 38}, c.Title)
	all.FillText(style(textSize, muted), vg.Point{X: margin, Y: height - 60}, c.Subtitle)
}

// drawLegend has the lines' names and figures.
func (c chart) drawLegend(area draw.Canvas) error {
	for i, l := range c.Lines {
		drawn, err := l.drawn(series[i%len(series)])
		if err != nil {
			return err
		}
		legend := plot.NewLegend()
		legend.TextStyle = style(textSize, series[i%len(series)])
		legend.Left, legend.Top, legend.ThumbnailWidth = true, true, 30
		legend.Add(l.Name+": "+l.Figure, drawn)
		legend.Draw(draw.Crop(area, 0, 0, 0, -vg.Length(i)*legendHeight))
	}
	return nil
}

// plot is the part of the picture with axes.
func (c chart) plot() (*plot.Plot, error) {
	p := plot.New()
	p.BackgroundColor = page
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = c.X.From, c.X.To, c.Y.From, c.Y.To
	for of, shown := range map[*plot.Axis]axis{&p.X: c.X, &p.Y: c.Y} {
		of.Label.Text, of.LineStyle.Width, of.Tick.LineStyle.Width = shown.Label, 0, 0
		of.Tick.Marker = plot.ConstantTicks(shown.ticks())
		for _, s := range []*text.Style{&of.Label.TextStyle, &of.Tick.Label} {
			s.Color, s.Font.Size = muted, textSize
		}
	}
	lines := plotter.NewGrid()
	lines.Vertical.Width, lines.Horizontal.Width, lines.Horizontal.Color = 0, 1, grid
	p.Add(lines)
	for i, l := range c.Lines {
		l.lower = float64(len(c.Lines)-1-i) * apart * (c.Y.To - c.Y.From)
		if err := c.add(p, l, series[i%len(series)]); err != nil {
			return nil, err
		}
	}
	return p, c.mark(p)
}

// ticks are the multiples of the step.
func (a axis) ticks() (ticks []plot.Tick) {
	for n := int(math.Ceil(a.From / a.Step)); float64(n)*a.Step <= a.To; n++ {
		at := float64(n) * a.Step
		ticks = append(ticks, plot.Tick{Value: at, Label: fmt.Sprint(at)})
	}
	return ticks
}

// add adds a line, and shades what it lacks.
func (c chart) add(p *plot.Plot, l line, colour color.RGBA) error {
	if !l.Nodes {
		lacks, err := plotter.NewPolygon(l.below(c.Base))
		if err != nil {
			return err
		}
		lacks.LineStyle.Width, lacks.Color = 0, shade(colour)
		p.Add(lacks)
	}
	drawn, err := l.drawn(colour)
	if err != nil {
		return err
	}
	p.Add(drawn)
	return nil
}

// mark draws moments, with their names above the lines.
func (c chart) mark(p *plot.Plot) error {
	for i, m := range c.Marks {
		at, err := plotter.NewLine(plotter.XYs{{X: m.At, Y: c.Y.From}, {X: m.At, Y: c.Y.To}})
		if err != nil {
			return err
		}
		at.Color, at.Dashes = muted, []vg.Length{2, 4}
		name, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: m.At, Y: c.Y.To}}, Labels: []string{m.Text}})
		if err != nil {
			return err
		}
		name.TextStyle[0] = style(textSize, ink)
		name.TextStyle[0].YAlign, name.Offset.Y = draw.YTop, -2
		name.TextStyle[0].XAlign, name.Offset.X = draw.XLeft, 6
		if i == len(c.Marks)-1 {
			name.TextStyle[0].XAlign, name.Offset.X = draw.XRight, -24
		}
		p.Add(at, name)
	}
	return nil
}

// drawn is the line, in steps.
func (l line) drawn(colour color.Color) (*plotter.Line, error) {
	drawn, err := plotter.NewLine(l.steps())
	if err != nil {
		return nil, fmt.Errorf("line %q: %w", l.Name, err)
	}
	drawn.Color, drawn.Width = colour, 2.5
	if l.Strong {
		drawn.Width = 4
	}
	return drawn, nil
}

// steps has a point before each at which the count changes.
func (l line) steps() (points plotter.XYs) {
	for i, p := range l.Points {
		if i > 0 {
			points = append(points, plotter.XY{X: p[0], Y: l.Points[i-1][1] - l.lower})
		}
		points = append(points, plotter.XY{X: p[0], Y: p[1] - l.lower})
	}
	return points
}

// below is the area between the base and what is less.
func (l line) below(base float64) (area plotter.XYs) {
	for _, p := range l.steps() {
		area = append(area, plotter.XY{X: p.X, Y: min(p.Y, base)})
	}
	return append(area, plotter.XY{X: area[len(area)-1].X, Y: base}, plotter.XY{X: area[0].X, Y: base})
}

func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer takes everything
	return b.String()
}
