package report

import (
	"fmt"
	"time"

	"spot-handler/cmd/spot-handler/internal/observe"
)

// tracks are this many units wide; they are stretched to the width of the page.
const trackWidth = 1000

// axis is the time that all tracks and charts share, from the first notice on.
type axis struct {
	begin time.Time
	whole time.Duration
}

// tick is a labelled time.
type tick struct {
	X, Percent, Text string
	at               float64
	Last             bool // so close to the end that its label stands before it
}

// axisOf takes in everything that was seen, and the deadlines unless they are so late that the
// rest would be too small to see.
func axisOf(r observe.Recording) axis {
	a := axis{begin: r.Begin(), whole: max(10*time.Second, r.To.Sub(r.Begin()))}
	for _, n := range r.Nodes {
		if n.Deadline == nil {
			continue
		}
		if d := n.Deadline.Sub(a.begin); d < 4*a.whole || d < 3*time.Minute {
			a.whole = max(a.whole, d+d/40)
		}
	}
	return a
}

// at is where a time is, in units of a track.
func (a axis) at(t time.Time) float64 {
	return min(trackWidth, max(0, trackWidth*float64(t.Sub(a.begin))/float64(a.whole)))
}

func (a axis) x(t time.Time) string { return number(a.at(t)) }

// stamp is a time in seconds since the first notice.
func (a axis) stamp(t time.Time) string { return fmt.Sprintf("%.1f s", t.Sub(a.begin).Seconds()) }

// shows reports whether a time is on the axis.
func (a axis) shows(t time.Time) bool { return !t.Before(a.begin) && t.Sub(a.begin) <= a.whole }

var tickSteps = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute,
	2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour,
}

// mostTicks fit side by side on a narrow page.
const mostTicks = 5

func (a axis) ticks() []tick {
	step := tickSteps[len(tickSteps)-1]
	for _, s := range tickSteps {
		if a.whole/s <= mostTicks {
			step = s
			break
		}
	}
	var list []tick
	for at := time.Duration(0); at <= a.whole; at += step {
		x := trackWidth * float64(at) / float64(a.whole)
		text := fmt.Sprintf("%.0f s", at.Seconds())
		if step >= time.Minute {
			text = fmt.Sprintf("%.0f min", at.Minutes())
		}
		list = append(list, tick{number(x), number(x / trackWidth * 100), text, x, x > 0.97*trackWidth})
	}
	return list
}

func number(x float64) string { return fmt.Sprintf("%.2f", x) }
