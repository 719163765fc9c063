package picture

import (
	"math/rand/v2"
	"testing"
)

// TestLabelsNeverOverlap draws lines of all kinds, also many that are the same.
func TestLabelsNeverOverlap(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 60 {
		p := Picture{Title: "any", X: Axis{"x", 0, 100}, Y: Axis{"y", 0, 40}}
		same := anyPoints(random)
		for range 1 + random.IntN(4) {
			line := Line{Name: "a line with a name", Figure: "and with a figure", Points: same, Steps: i%2 == 0}
			if i%3 != 0 {
				line.Points = anyPoints(random)
			}
			p.Lines = append(p.Lines, line)
		}
		if i%5 == 0 {
			p.Base = 30
		}
		checkLabels(t, p)
	}
}

func anyPoints(random *rand.Rand) (points []Point) {
	x := 0.0
	for range 2 + random.IntN(30) {
		points = append(points, Point{x, float64(random.IntN(41))})
		x += random.Float64() * 10
	}
	return points
}

// checkLabels checks that labels are in the plot and apart.
func checkLabels(t *testing.T, p Picture) *layout {
	t.Helper()
	l, err := p.layout()
	if err != nil {
		t.Fatal(err)
	}
	plot := box{l.Plot.Left, l.Plot.Top, l.Plot.Right - l.Plot.Left, l.Plot.Bottom - l.Plot.Top}
	for i, d := range l.Drawn {
		if !d.label.within(plot) {
			t.Errorf("the label of line %d, %+v, is not in the plot %+v", i, d.label, plot)
		}
		if w := d.label.w; w < boldWidth(d.Name, textSize) || w < textWidth(d.Figure, textSize) {
			t.Errorf("the label of line %d is wider than its place", i)
		}
		for j, other := range l.Drawn[:i] {
			if d.label.overlaps(other.label) {
				t.Errorf("the labels of lines %d and %d overlap: %+v, %+v", j, i, other.label, d.label)
			}
			if (segment{d.From, d.To}).through(other.label.grown(-1)) || (segment{other.From, other.To}).through(d.label.grown(-1)) {
				t.Errorf("a leader runs through a label of the lines %d and %d", j, i)
			}
		}
	}
	return l
}

// TestLabelStandsAtItsOwn has two lines that part: the labels stand where they have.
func TestLabelStandsAtItsOwn(t *testing.T) {
	p := Picture{
		Title: "parted", X: Axis{"x", 0, 100}, Y: Axis{"y", 0, 40}, Base: 30,
		Lines: []Line{
			{Name: "low", Figure: "for long", Steps: true, Points: []Point{{0, 30}, {10, 20}, {80, 30}, {100, 30}}},
			{Name: "high", Figure: "a moment", Steps: true, Points: []Point{{0, 30}, {50, 35}, {60, 30}, {100, 30}}},
		},
	}
	l := checkLabels(t, p)
	low, high := l.Drawn[0], l.Drawn[1]
	if base := l.y(30); low.To.Y <= base+5 || high.To.Y >= base-5 {
		t.Errorf("the labels point at %+v and %+v, the base is at %v", low.To, high.To, base)
	}
	for _, d := range l.Drawn {
		if runsThrough(segments(low.inPicture), d.label) || runsThrough(segments(high.inPicture), d.label) {
			t.Errorf("a line runs through the label %q", d.Name)
		}
	}
}

func TestTooManyLabels(t *testing.T) {
	p := Picture{Title: "small", X: Axis{"x", 0, 1}, Y: Axis{"y", 0, 1}, Lines: []Line{
		{Name: "a name that is far longer than any picture is wide, and that therefore has no place in it at all, however small", Points: []Point{{0, 0}, {1, 1}}},
	}}
	if _, err := p.SVG(); err == nil {
		t.Error("a label that has no place was drawn")
	}
}

func TestCrosses(t *testing.T) {
	cross := segment{Point{0, 0}, Point{10, 10}}
	for _, test := range []struct {
		other segment
		want  bool
	}{
		{segment{Point{0, 10}, Point{10, 0}}, true},
		{segment{Point{0, 10}, Point{4, 6}}, false},
		{segment{Point{1, 0}, Point{11, 10}}, false},
	} {
		if got := cross.crosses(test.other); got != test.want {
			t.Errorf("%v crosses %v: %t, want %t", test.other, cross, got, test.want)
		}
	}
}
