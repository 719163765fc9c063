package report

import (
	"fmt"
	"strings"
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

// The size of a chart, in its own units.
const (
	chartWidth, chartHeight = 360, 150
	plotLeft, plotRight     = 30, 352
	plotTop, plotBottom     = 10, 124
)

// chart is the ready pods of a workload over time, against how many it asks for.
type chart struct {
	ID, Name            string
	Description         string
	Figures             []fact
	Dips                bool
	Ready, Area, Missed string // paths
	Desired, Needed     string // paths; Needed is empty without a budget
	Rows                []label
	Columns             []label
}

// label is a number beside an axis.
type label struct{ X, Y, Text string }

func chartOf(x axis, w observe.Workload, r observe.Recording, s Score) chart {
	p := plotOf(x, w, r)
	c := chart{ID: strings.NewReplacer("/", "-").Replace("chart-" + w.Namespace + "-" + w.Name), Name: w.Namespace + "/" + w.Name, Dips: w.Missing > 0}
	c.Ready = p.steps(func(o observe.Sample) int { return o.Ready })
	c.Desired = p.steps(func(o observe.Sample) int { return o.Desired })
	c.Area = c.Ready + fmt.Sprintf("V%dH%sZ", plotBottom, number(p.x(w.Samples[0].At)))
	before := w.Samples[0].Ready
	if w.Missing > 0 {
		c.Missed = p.between(func(o observe.Sample) int { return min(o.Desired, before) }, func(o observe.Sample) int { return min(o.Ready, o.Desired, before) })
	}
	last := w.Samples[len(w.Samples)-1]
	c.Figures = []fact{{"asks for", fmt.Sprint(last.Desired)}, {"fewest ready", fmt.Sprint(w.Fewest)}}
	for _, score := range s.Workloads {
		if score.Namespace == w.Namespace && score.Name == w.Name && score.ForecastFewest != nil {
			c.Figures = append(c.Figures, fact{"forecast", fmt.Sprint(*score.ForecastFewest)})
		}
	}
	if p.needed > 0 {
		c.Needed = fmt.Sprintf("M%d %sH%d", plotLeft, number(p.y(p.needed)), plotRight)
		c.Figures = append(c.Figures, fact{"budget needs", fmt.Sprint(p.needed)})
	}
	c.Figures = append(c.Figures, fact{"pod-seconds missing", fmt.Sprintf("%.1f", w.UnavailableSeconds)})
	c.Description = fmt.Sprintf("%d of %d pods were ready at first, %d at the fewest, %d at the end.", before, w.Samples[0].Desired, w.Fewest, last.Ready)
	c.Rows, c.Columns = p.rows(w), p.columns()
	return c
}

// plot is where the samples of a workload are drawn.
type plot struct {
	axis
	samples   []observe.Sample
	until     time.Time // the end of what was seen
	low, high int       // of the numbers of pods
	needed    int       // by its budgets
}

func plotOf(x axis, w observe.Workload, r observe.Recording) plot {
	p := plot{axis: x, samples: w.Samples, until: r.To, low: w.Fewest}
	for _, s := range w.Samples {
		p.high = max(p.high, s.Ready, s.Desired)
	}
	for _, b := range r.Budgets {
		for _, name := range b.Workloads {
			if b.Namespace == w.Namespace && name == w.Name && len(b.Workloads) == 1 {
				p.needed = max(p.needed, b.Needed)
			}
		}
	}
	if p.needed > 0 {
		p.low = min(p.low, p.needed)
	}
	p.low = max(0, p.low-max(1, (p.high-p.low)/2))
	return p
}

func (p plot) x(at time.Time) float64 { return plotLeft + p.at(at)/trackWidth*(plotRight-plotLeft) }

func (p plot) y(pods int) float64 {
	return plotBottom - float64(pods-p.low)/float64(max(1, p.high-p.low))*(plotBottom-plotTop)
}

// end is where the last sample holds until.
func (p plot) end() string { return number(p.x(p.until)) }

func (p plot) steps(of func(observe.Sample) int) string {
	var b strings.Builder
	for i, s := range p.samples {
		if i == 0 {
			fmt.Fprintf(&b, "M%s %s", number(p.x(s.At)), number(p.y(of(s))))
		} else {
			fmt.Fprintf(&b, "H%sV%s", number(p.x(s.At)), number(p.y(of(s))))
		}
	}
	return b.String() + "H" + p.end()
}

// between is the area between two lines of steps.
func (p plot) between(upper, lower func(observe.Sample) int) string {
	var b strings.Builder
	for i, s := range p.samples {
		if upper(s) <= lower(s) {
			continue
		}
		until := p.end()
		if i+1 < len(p.samples) {
			until = number(p.x(p.samples[i+1].At))
		}
		fmt.Fprintf(&b, "M%s %sH%sV%sH%sZ", number(p.x(s.At)), number(p.y(upper(s))), until, number(p.y(lower(s))), number(p.x(s.At)))
	}
	return b.String()
}

// rows label the numbers that matter, if they do not touch.
func (p plot) rows(w observe.Workload) []label {
	const apart = 12.0
	var list []label
	var taken []float64
	for _, n := range []int{w.Samples[len(w.Samples)-1].Desired, w.Fewest, p.needed, p.high, p.low} {
		y := p.y(n)
		free := n > 0 || n == p.low
		for _, other := range taken {
			free = free && (y-other >= apart || other-y >= apart)
		}
		if free {
			taken = append(taken, y)
			list = append(list, label{number(plotLeft - 6), number(y), fmt.Sprint(n)})
		}
	}
	return list
}

func (p plot) columns() []label {
	var list []label
	for i, t := range p.ticks() {
		if i%2 == 0 && !t.Last {
			list = append(list, label{number(plotLeft + t.at/trackWidth*(plotRight-plotLeft)), number(plotBottom + 18), t.Text})
		}
	}
	return list
}
