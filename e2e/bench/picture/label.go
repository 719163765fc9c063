package picture

import (
	"math"
	"slices"
)

// label is where a line's name stands, and what leads from it to the line.
type label struct {
	box    box
	leader segment // its second end touches the line
	shown  bool    // the label is not so close that it needs none
}

// collides reports whether one label or its leader hides the other.
func (l label) collides(o label) bool {
	return l.box.grown(between).overlaps(o.box) || l.leader.through(o.box) || o.leader.through(l.box) || l.leader.crosses(o.leader)
}

// box is an area of the picture.
type box struct{ x, y, w, h float64 }

func (b box) overlaps(o box) bool {
	return b.x < o.x+o.w && o.x < b.x+b.w && b.y < o.y+o.h && o.y < b.y+b.h
}

func (b box) within(o box) bool {
	return b.x >= o.x && b.y >= o.y && b.x+b.w <= o.x+o.w && b.y+b.h <= o.y+o.h
}

func (b box) grown(by float64) box { return box{b.x - by, b.y - by, b.w + 2*by, b.h + 2*by} }

// nearest is the point of the box that is closest to p.
func (b box) nearest(p Point) Point {
	return Point{min(max(p.X, b.x), b.x+b.w), min(max(p.Y, b.y), b.y+b.h)}
}

// segment is a straight part of a line.
type segment struct{ a, b Point }

// What a place costs, in pixels of a leader that a reader would rather follow.
const (
	overLine  = 400.0 // for each line that runs through the label
	crossLine = 50.0  // for each other line that its leader crosses
	overMark  = 30.0  // for each mark behind the label
	onBase    = 80.0  // where the anchor is where all lines should be
	notAlone  = 4.0   // for each pixel that another line is closer to the anchor than
	aloneFrom = 24.0  // this
)

// Distances in pixels.
const (
	noLeader = 12.0 // a label that is no further from its line needs none
	between  = 8.0  // labels, at the least
	aside    = 5.0  // from lines, where there is room
)

// space is what labels have to share.
type space struct {
	plot  box
	lines [][]segment
	marks []float64
	base  float64 // 0: there is none
}

// place finds a place for the label of each line: close to a part of it that is its own,
// and free of lines. Labels never overlap, even where nothing is free: then the later ones
// lie over lines. ok is false where not even that is possible.
func (s space) place(sizes []box) (labels []label, ok bool) {
	for i := range s.lines {
		best, cost := label{}, math.Inf(1)
		for _, anchor := range along(s.lines[i]) {
			start := notAlone * (aloneFrom - s.alone(anchor, i))
			if s.base != 0 && math.Abs(anchor.Y-s.base) < aloneFrom/2 {
				start += onBase
			}
			for _, b := range around(anchor, sizes[i]) {
				near := b.nearest(anchor)
				length := math.Hypot(near.X-anchor.X, near.Y-anchor.Y)
				at := label{b, segment{near, anchor}, length > noLeader}
				if start+length >= cost || !b.within(s.plot) || slices.ContainsFunc(labels, at.collides) {
					continue
				}
				if c := start + length + s.covered(at, i); c < cost {
					best, cost = at, c
				}
			}
		}
		if math.IsInf(cost, 1) {
			return nil, false
		}
		labels = append(labels, best)
	}
	return labels, true
}

// alone is how far the other lines are from a point of line i, as far as that matters.
func (s space) alone(p Point, i int) float64 {
	least := aloneFrom
	for j, line := range s.lines {
		if j != i {
			least = min(least, distance(p, line))
		}
	}
	return least
}

// covered is the cost of what lies under the label of line i and its leader.
func (s space) covered(at label, i int) (cost float64) {
	for j, line := range s.lines {
		switch {
		case runsThrough(line, at.box.grown(aside)):
			cost += overLine
		case j != i && crosses(line, at.leader):
			cost += crossLine
		}
	}
	for _, m := range s.marks {
		if at.box.x < m && m < at.box.x+at.box.w {
			cost += overMark
		}
	}
	return cost
}

// along are points of a line that a leader may touch.
func along(line []segment) (points []Point) {
	const step = 6.0
	for _, s := range line {
		dx, dy := s.b.X-s.a.X, s.b.Y-s.a.Y
		parts := math.Ceil(math.Hypot(dx, dy) / step)
		for k := 0.5; k < parts; k++ {
			points = append(points, Point{s.a.X + dx*k/parts, s.a.Y + dy*k/parts})
		}
	}
	return points
}

// around are the places for a label of the size, on all sides and at growing distances.
func around(p Point, size box) (places []box) {
	for _, d := range []float64{10, 18, 28, 44, 64, 90, 120} {
		places = append(places,
			box{p.X + d, p.Y - size.h/2, size.w, size.h}, box{p.X - d - size.w, p.Y - size.h/2, size.w, size.h},
			box{p.X - size.w/2, p.Y - d - size.h, size.w, size.h}, box{p.X - size.w/2, p.Y + d, size.w, size.h},
			box{p.X + d, p.Y + d, size.w, size.h}, box{p.X - d - size.w, p.Y + d, size.w, size.h},
			box{p.X + d, p.Y - d - size.h, size.w, size.h}, box{p.X - d - size.w, p.Y - d - size.h, size.w, size.h})
	}
	return places
}

func runsThrough(line []segment, b box) bool {
	return slices.ContainsFunc(line, func(s segment) bool { return s.through(b) })
}

func crosses(line []segment, leader segment) bool {
	return slices.ContainsFunc(line, leader.crosses)
}

func segments(points []Point) (parts []segment) {
	for i := 1; i < len(points); i++ {
		parts = append(parts, segment{points[i-1], points[i]})
	}
	return parts
}

// distance is that of a point from a line.
func distance(p Point, line []segment) float64 {
	least := math.Inf(1)
	for _, s := range line {
		dx, dy := s.b.X-s.a.X, s.b.Y-s.a.Y
		t := 0.0
		if squared := dx*dx + dy*dy; squared > 0 {
			t = min(max(((p.X-s.a.X)*dx+(p.Y-s.a.Y)*dy)/squared, 0), 1)
		}
		least = min(least, math.Hypot(s.a.X+t*dx-p.X, s.a.Y+t*dy-p.Y))
	}
	return least
}

// through reports whether the segment has a point in the box.
func (s segment) through(b box) bool {
	inside := func(p Point) bool { return p.X > b.x && p.X < b.x+b.w && p.Y > b.y && p.Y < b.y+b.h }
	if inside(s.a) || inside(s.b) {
		return true
	}
	// It passes through if it crosses a diagonal.
	return s.crosses(segment{Point{b.x, b.y}, Point{b.x + b.w, b.y + b.h}}) ||
		s.crosses(segment{Point{b.x + b.w, b.y}, Point{b.x, b.y + b.h}})
}

// crosses reports whether each segment has its ends on both sides of the other.
func (s segment) crosses(o segment) bool {
	side := func(s segment, p Point) float64 {
		return (s.b.X-s.a.X)*(p.Y-s.a.Y) - (s.b.Y-s.a.Y)*(p.X-s.a.X)
	}
	return side(s, o.a)*side(s, o.b) < 0 && side(o, s.a)*side(o, s.b) < 0
}
