package bench

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"spot-handler/e2e/bench/picture"
)

// The pictures of the documents. Each is drawn again when all that it shows has been
// measured, and only then.
const (
	readyPodsFile = "../../deploy/docs/ready-pods.svg"
	cordonsFile   = "../../deploy/docs/cordons.svg"
)

// readyPods draws how many pods of the service were ready, for each of the ways.
func readyPods(results []outage) picture.Picture {
	p := picture.Picture{
		Title: fmt.Sprintf("One of four nodes is lost: ready pods of a service of %d", servicePods),
		Subtitle: fmt.Sprintf("%d pods run on it. A new node boots in %.0f s, a pod is ready after %.0f s; the disruption budget lets 25%% go.",
			servicePods/serviceNodes, bootTime.Seconds(), readyTime.Seconds()),
		X:    picture.Axis{Label: "seconds after EC2’s notice", From: -6, To: noticeTime.Seconds() + 6},
		Base: servicePods,
		Marks: []picture.Mark{
			{At: 0, Text: "notice"}, {At: bootTime.Seconds(), Text: "first new node is up"}, {At: noticeTime.Seconds(), Text: "EC2 takes the node"},
		},
	}
	least, most := float64(servicePods), float64(servicePods)
	var told []string
	for i, r := range results {
		line := picture.Line{
			Name: ways[i].label, Colour: ways[i].colour, Figure: fmt.Sprintf("%.0f pod-seconds unavailable", r.podSeconds),
			Points: []picture.Point{{X: p.X.From, Y: servicePods}}, Steps: true, Strong: ways[i].name == "surge",
		}
		for _, at := range r.ready {
			least, most = min(least, at.Y), max(most, at.Y)
			if at.X <= noticeTime.Seconds() {
				line.Points = append(line.Points, picture.Point{X: math.Round(10*at.X) / 10, Y: at.Y})
			}
		}
		line.Points = append(line.Points, picture.Point{X: noticeTime.Seconds(), Y: line.Points[len(line.Points)-1].Y})
		p.Lines = append(p.Lines, line)
		told = append(told, fmt.Sprintf("%s: never fewer than %d ready, %s", line.Name, r.fewest, line.Figure))
	}
	p.Description = strings.Join(told, ". ") + "."
	p.Y = picture.Axis{From: least - 5, To: most + 3}
	p.Y.Label = fmt.Sprintf("ready pods (axis from %.0f)", p.Y.From)
	return p
}

// drawnBurst is of how many notices the picture is.
const drawnBurst = 1000

// cordons draws how many nodes the daemon and the raw loop had cordoned. It shows the
// round with the median ratio of the two.
func cordons(all []burst) picture.Picture {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b burst) int {
		return cmp.Compare(a.all/a.rawAll, b.all/b.rawAll)
	})
	r := sorted[len(sorted)/2]
	const name, raw = "spot-handler", "raw loop of the same patches"
	figure := func(cordons []float64) string { return fmt.Sprintf("all after %.1f s", cordons[len(cordons)-1]) }
	last := max(r.cordons[len(r.cordons)-1], r.rawCordons[len(r.rawCordons)-1])
	return picture.Picture{
		Title:       "1,000 nodes are interrupted at once: how many are cordoned",
		Subtitle:    fmt.Sprintf("The raw loop sends nothing but the same patches, %d at once, as the daemon does. Both on %d cores.", sameConcurrency, runtime.NumCPU()),
		Description: fmt.Sprintf("%s: %s. %s: %s.", name, figure(r.cordons), raw, figure(r.rawCordons)),
		X:           picture.Axis{Label: "seconds after the first notice", From: 0, To: math.Ceil(last + 0.5)},
		Y:           picture.Axis{Label: "cordoned nodes", From: 0, To: 1.08 * drawnBurst},
		Lines: []picture.Line{
			{Name: raw, Colour: picture.Grey, Figure: figure(r.rawCordons), Points: counted(r.rawCordons)},
			{Name: name, Colour: picture.Green, Figure: figure(r.cordons), Points: counted(r.cordons), Strong: true},
		},
		Notes: []string{"aws-node-termination-handler 1.25.6: 96 s at best for 500 notices, measured apart on 2 cores."},
	}
}

// counted is the number of nodes over time, at each hundredth of them.
func counted(seconds []float64) []picture.Point {
	points := []picture.Point{{X: 0, Y: 0}, {X: seconds[0], Y: 1}}
	for n := len(seconds) / 100; n <= len(seconds); n += len(seconds) / 100 {
		points = append(points, picture.Point{X: seconds[n-1], Y: float64(n)})
	}
	return points
}

// TestReadyPods draws a service that lost pods in some of the ways.
func TestReadyPods(t *testing.T) {
	results := []outage{
		{podSeconds: 360, fewest: 21, ready: []picture.Point{{X: 0, Y: 28}, {X: 2.04, Y: 21}, {X: 53, Y: 28}}},
		{podSeconds: 350, fewest: 21, ready: []picture.Point{{X: 0, Y: 28}, {X: 2.04, Y: 21}, {X: 52, Y: 28}}},
		{podSeconds: 70, fewest: 21, ready: []picture.Point{{X: 0, Y: 28}, {X: 41, Y: 21}, {X: 51, Y: 28}, {X: 121, Y: 27}}},
		{podSeconds: 0, fewest: 28, ready: []picture.Point{{X: 0, Y: 28}, {X: 50, Y: 35}, {X: 51, Y: 28}}},
	}
	p := readyPods(results)
	for i, line := range p.Lines {
		if last := line.Points[len(line.Points)-1]; last != (picture.Point{X: 120, Y: 28}) {
			t.Errorf("line %d ends at %v", i, last)
		}
	}
	if got := p.Lines[0].Points[2]; got != (picture.Point{X: 2, Y: 21}) {
		t.Errorf("the third point of the first line is %v", got)
	}
	if p.Y.From != 16 || p.Y.To != 38 || !strings.Contains(p.Y.Label, "from 16") {
		t.Errorf("the axis of pods is %+v", p.Y)
	}
	if _, err := p.SVG(); err != nil {
		t.Error(err)
	}
}

// TestCordons draws the round in the middle of three.
func TestCordons(t *testing.T) {
	round := func(seconds, raw float64) burst {
		spread := func(all float64) (at []float64) {
			for i := range drawnBurst {
				at = append(at, all*float64(i+1)/drawnBurst)
			}
			return at
		}
		return burst{all: seconds, rawAll: raw, cordons: spread(seconds), rawCordons: spread(raw)}
	}
	p := cordons([]burst{round(9, 6), round(7, 6), round(6.6, 6)})
	if got := p.Lines[1].Figure; got != "all after 7.0 s" {
		t.Errorf("the daemon's line says %q", got)
	}
	for _, line := range p.Lines {
		if last := line.Points[len(line.Points)-1]; last.Y != drawnBurst || len(line.Points) > 102 {
			t.Errorf("%q has %d points, the last is %v", line.Name, len(line.Points), last)
		}
	}
	if _, err := p.SVG(); err != nil {
		t.Error(err)
	}
}
