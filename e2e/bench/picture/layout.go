package picture

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// layout is the picture in pixels, as the template takes it.
type layout struct {
	Picture
	Width, Height       float64
	Margin              float64
	TextSize, TitleSize float64
	TitleY, SubtitleY   float64
	MiddleY             float64 // of the plot
	Plot                struct{ Left, Top, Right, Bottom float64 }
	XTicks, YTicks      []tick
	Marked              []marked
	Drawn               []drawn
	BaseY               float64
	Noted               []note

	Page, Ink, Muted, Grid Colour
}

type tick struct {
	At   float64
	Text string
	Base bool
}

// marked is a mark with its place: its text stands above the plot.
type marked struct {
	X, TextY float64
	Anchor   string
	Text     string
	box      box
}

// drawn is a line with its label.
type drawn struct {
	Line
	Path, Area string
	Width      float64
	LabelX     float64
	NameY      float64
	FigureY    float64
	Anchor     string
	Leader     bool
	From, To   Point // of the leader
	label      box
	inPicture  []Point
}

type note struct {
	Y    float64
	Text string
}

func (p Picture) layout() (*layout, error) {
	switch {
	case len(p.Lines) == 0:
		return nil, errors.New("there is no line")
	case !(p.X.To > p.X.From) || !(p.Y.To > p.Y.From):
		return nil, errors.New("an axis has no length")
	case boldWidth(p.Title, titleSize) > width-2*margin:
		return nil, errors.New("the title is too long")
	}
	for _, text := range append([]string{p.Subtitle}, p.Notes...) {
		if textWidth(text, textSize) > width-2*margin {
			return nil, fmt.Errorf("%q is too long", text)
		}
	}
	l := &layout{
		Picture: p, Width: width, Margin: margin, TextSize: textSize, TitleSize: titleSize,
		Page: page, Ink: ink, Muted: muted, Grid: grid,
	}
	l.TitleY = margin + titleSize
	l.SubtitleY = l.TitleY + 24
	l.Plot.Right = width - margin
	for _, v := range append(ticks(p.Y.From, p.Y.To, mostTicks), p.Base) {
		l.Plot.Left = max(l.Plot.Left, margin+lineHeight+textWidth(spoken(v), textSize)+between)
	}
	l.Plot.Top = l.SubtitleY + 26
	for _, row := range l.mark() {
		l.Plot.Top = max(l.Plot.Top, row)
	}
	l.Plot.Bottom = l.Plot.Top + plotHeight
	l.MiddleY = (l.Plot.Top + l.Plot.Bottom) / 2
	l.Height = l.Plot.Bottom + 56
	for i, text := range p.Notes {
		if i == 0 {
			l.Height += 16
		}
		l.Noted = append(l.Noted, note{l.Height - 4, text})
		l.Height += lineHeight
	}
	for _, v := range ticks(p.X.From, p.X.To, mostTicks) {
		l.XTicks = append(l.XTicks, tick{At: l.x(v), Text: spoken(v)})
	}
	if p.Base != 0 {
		l.BaseY = l.y(p.Base)
		l.YTicks = append(l.YTicks, tick{l.BaseY, spoken(p.Base), true})
	}
	for _, v := range ticks(p.Y.From, p.Y.To, mostTicks) {
		if p.Base == 0 || math.Abs(l.y(v)-l.BaseY) > textSize {
			l.YTicks = append(l.YTicks, tick{At: l.y(v), Text: spoken(v)})
		}
	}
	return l, l.draw()
}

func (l *layout) x(v float64) float64 {
	return l.Plot.Left + (v-l.X.From)/(l.X.To-l.X.From)*(l.Plot.Right-l.Plot.Left)
}

func (l *layout) y(v float64) float64 {
	return l.Plot.Bottom - (v-l.Y.From)/(l.Y.To-l.Y.From)*(l.Plot.Bottom-l.Plot.Top)
}

// mark puts the texts of the marks above the plot, those that would overlap in rows, and
// returns where the plot may begin below each.
func (l *layout) mark() (below []float64) {
	for _, m := range l.Marks {
		at := marked{X: l.x(m.At), Anchor: "middle", Text: m.Text}
		w := textWidth(m.Text, textSize)
		at.box = box{at.X - w/2, l.SubtitleY + 14, w, lineHeight}
		switch {
		case at.box.x < margin:
			at.box.x, at.Anchor = at.X, "start"
		case at.box.x+w > width-margin:
			at.box.x, at.Anchor = at.X-w, "end"
		}
		for again := true; again; {
			again = false
			for _, other := range l.Marked {
				if at.box.grown(between / 2).overlaps(other.box) {
					at.box.y, again = other.box.y+lineHeight+between, true
				}
			}
		}
		at.TextY = at.box.y + textSize
		l.Marked = append(l.Marked, at)
		below = append(below, at.box.y+at.box.h+between)
	}
	return below
}

// draw makes the lines' paths and finds places for their labels.
func (l *layout) draw() error {
	room := space{
		plot: box{l.Plot.Left, l.Plot.Top, l.Plot.Right - l.Plot.Left, l.Plot.Bottom - l.Plot.Top}.grown(-4),
		base: l.BaseY,
	}
	var sizes []box
	for i, line := range l.Lines {
		if len(line.Points) == 0 {
			return fmt.Errorf("%q has no points", line.Name)
		}
		d := drawn{Line: line, Width: lineWidth}
		if line.Strong {
			d.Width = strongWidth
		}
		// Steps with equal values, as counts have them, lie side by side: the last on top.
		shift := 0.0
		if line.Steps {
			shift = (float64(len(l.Lines)-1)/2 - float64(i)) * apart
		}
		for _, p := range l.corners(line) {
			d.inPicture = append(d.inPicture, Point{rounded(p.X), rounded(p.Y + shift)})
		}
		d.Path = path(d.inPicture)
		if l.Base != 0 {
			d.Area = area(d.inPicture, rounded(l.BaseY+shift))
		}
		room.lines = append(room.lines, segments(d.inPicture))
		sizes = append(sizes, box{w: max(boldWidth(line.Name, textSize), textWidth(line.Figure, textSize)), h: 2 * lineHeight})
		l.Drawn = append(l.Drawn, d)
	}
	for _, m := range l.Marked {
		room.marks = append(room.marks, m.X)
	}
	labels, ok := room.place(sizes)
	if !ok {
		return errors.New("there is no room for the labels")
	}
	for i, label := range labels {
		l.Drawn[i].set(label)
	}
	return nil
}

// set writes the label from the side that its line is on.
func (d *drawn) set(at label) {
	b, end := at.box, at.leader.b
	d.label = b
	d.LabelX, d.Anchor = b.x, "start"
	switch centre := b.x + b.w/2; {
	case b.x+b.w <= end.X:
		d.LabelX, d.Anchor = b.x+b.w, "end"
	case math.Abs(centre-end.X) < 1:
		d.LabelX, d.Anchor = centre, "middle"
	}
	d.LabelX, d.NameY = rounded(d.LabelX), rounded(b.y+textSize)
	d.FigureY = d.NameY + lineHeight
	d.Leader = at.shown
	start := b.grown(3).nearest(end)
	d.From, d.To = Point{rounded(start.X), rounded(start.Y)}, Point{rounded(end.X), rounded(end.Y)}
}

// corners are the points between which a line is straight.
func (l *layout) corners(line Line) (points []Point) {
	add := func(x, y float64) {
		p := Point{l.x(min(max(x, l.X.From), l.X.To)), l.y(min(max(y, l.Y.From), l.Y.To))}
		if n := len(points); n > 0 && points[n-1] == p {
			return
		}
		points = append(points, p)
	}
	for i, p := range line.Points {
		if line.Steps && i > 0 {
			add(p.X, line.Points[i-1].Y)
		}
		add(p.X, p.Y)
	}
	return points
}

// area is what lies between the base and steps, where they are below it.
func area(line []Point, base float64) string {
	under := []Point{{line[0].X, base}}
	below := false
	for _, p := range line {
		under = append(under, Point{p.X, max(p.Y, base)})
		below = below || p.Y > base
	}
	if !below {
		return ""
	}
	return path(append(under, Point{line[len(line)-1].X, base})) + "Z"
}

// path writes points as SVG has them, in its shortest form.
func path(points []Point) string {
	var b strings.Builder
	fmt.Fprintf(&b, "M%s %s", number(points[0].X), number(points[0].Y))
	for i := 1; i < len(points); i++ {
		switch before, p := points[i-1], points[i]; {
		case p == before:
		case p.Y == before.Y:
			b.WriteString("H" + number(p.X))
		case p.X == before.X:
			b.WriteString("V" + number(p.Y))
		default:
			fmt.Fprintf(&b, "L%s %s", number(p.X), number(p.Y))
		}
	}
	return b.String()
}

// rounded is to half a pixel, which nobody sees and which keeps diffs small.
func rounded(v float64) float64 { return math.Round(2*v) / 2 }
