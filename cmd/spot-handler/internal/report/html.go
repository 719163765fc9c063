package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/handler/interruption"
)

//go:embed page.html.tmpl
var pageText string

//go:embed page.css
var pageStyle string

// WriteHTML writes the report as one page, which refers to nothing outside itself and runs no
// script.
func (r Report) WriteHTML(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"outcome": outcomeText,
		"both":    both,
		"seconds": func(s *plan.Seconds) string { return both(s, nil) },
		"at":      func(t *time.Time) string { return both(since(r.Recording.Begin(), t), nil) },
	}).Parse(pageText)
	if err != nil {
		return err
	}
	return t.Execute(w, r.page())
}

// page is what the template shows.
type page struct {
	Report
	Title, When string
	Slack       string // the smallest of all nodes
	InTime      bool   // the last drain ended before its deadline, and every pod had left
	Style       template.CSS
	Axis        []tick
	Nodes       []nodeView
	Workloads   []workloadView
	Refused     []podView
}

func (r Report) page() page {
	s, rec := r.Score, r.Recording
	x := axisOf(rec)
	begin := rec.Begin()
	p := page{
		Report: r,
		Title:  r.title(),
		When: fmt.Sprintf("%s · followed for %s",
			begin.UTC().Format("2 January 2006, 15:04:05 UTC"), console.Duration(rec.To.Sub(begin))),
		Slack:  both((*plan.Seconds)(s.SlackSeconds), nil),
		InTime: ptr.Deref(s.SlackSeconds, 0) > 0 && s.Left == 0,
		Style:  template.CSS(pageStyle),
		Axis:   x.ticks(),
	}
	forecast := map[string]PodPair{}
	if s.Forecast != nil {
		for _, pair := range s.Forecast.Pairs {
			forecast[pair.Node+"/"+pair.Namespace+"/"+pair.Name] = pair
		}
	}
	for i, n := range rec.Nodes {
		v := nodeView{Node: n, Score: s.Nodes[i], Track: x.nodeTrack(n), Clean: s.Nodes[i].Graceful == len(n.Pods)}
		v.Open = i < openNodes || !v.Clean
		for _, pod := range n.Pods {
			v.Pods = append(v.Pods, x.pod(n, pod, forecast[n.Name+"/"+pod.Namespace+"/"+pod.Name]))
		}
		p.Nodes = append(p.Nodes, v)
		p.Refused = append(p.Refused, slices.DeleteFunc(slices.Clone(v.Pods), func(pod podView) bool { return pod.Refusal == nil })...)
	}
	for i, w := range rec.Workloads {
		p.Workloads = append(p.Workloads, x.workload(rec, w, s.Workloads[i]))
	}
	return p
}

// title says what happened.
func (r Report) title() string {
	nodes := r.Recording.Nodes
	what := "Interruption"
	if !slices.ContainsFunc(nodes, func(n observe.Node) bool { return !n.Rehearsal }) {
		what = "Rehearsal"
	}
	switch len(nodes) {
	case 0:
		return "No interruption was seen"
	case 1:
		return what + " of " + nodes[0].Name
	}
	return fmt.Sprintf("%s of %d nodes", what, len(nodes))
}

// axis is the time that all tracks share, from the first notice on.
type axis struct {
	begin time.Time
	whole time.Duration
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

// trackWidth and trackHeight are the units of a track, which is stretched to the width of the page.
const trackWidth, trackHeight = 1000, 24

// at is where a time is, in units of a track.
func (x axis) at(t time.Time) float64 {
	return min(trackWidth, max(0, trackWidth*float64(t.Sub(x.begin))/float64(x.whole)))
}

// stamp is a time in seconds since the first notice.
func (x axis) stamp(t time.Time) string { return fmt.Sprintf("%.1f s", t.Sub(x.begin).Seconds()) }

// tick is a labelled time.
type tick struct {
	X, Text string
	Last    bool // so close to the end that its label stands before it
}

var tickSteps = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second, 30 * time.Second, time.Minute,
	2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour,
}

// mostTicks fit side by side on a narrow page.
const mostTicks = 5

func (x axis) ticks() (list []tick) {
	step := tickSteps[len(tickSteps)-1]
	for _, s := range tickSteps {
		if x.whole/s <= mostTicks {
			step = s
			break
		}
	}
	for at := time.Duration(0); at <= x.whole; at += step {
		text := fmt.Sprintf("%.0f s", at.Seconds())
		if step >= time.Minute {
			text = fmt.Sprintf("%.0f min", at.Minutes())
		}
		list = append(list, tick{number(x.at(x.begin.Add(at))), text, at > x.whole*97/100})
	}
	return list
}

func number(x float64) string { return fmt.Sprintf("%.2f", x) }

// track is a strip of time.
type track struct {
	Text  string // what it shows, in words: those of its bars, unless there are shorter ones
	Bars  []bar
	Marks []mark
	Grid  []tick
}

// bar is a time, of the kind of its class.
type bar struct{ X, Y, Width, Height, Class, Text string }

// mark is a moment.
type mark struct{ X, Class, Text string }

// band is where in a track bars are, from above.
type band struct{ y, height float64 }

var (
	middle = band{5, 12}
	below  = band{18, 4}
)

func (t *track) bar(x axis, in band, from, until time.Time, class, text string) {
	const least = 1.5 // units: what is shorter would not be seen
	a, b := x.at(from), x.at(until)
	t.Bars = append(t.Bars, bar{number(min(a, trackWidth-least)), number(in.y), number(max(least, b-a)), number(in.height), class, text})
	t.Text = strings.TrimPrefix(t.Text+"; "+text, "; ")
}

func (t *track) mark(x axis, at time.Time, class, text string) {
	if !at.Before(x.begin) && at.Sub(x.begin) <= x.whole {
		t.Marks = append(t.Marks, mark{number(x.at(at)), class, text + " at " + x.stamp(at)})
	}
}

// openNodes is how many nodes have their pods shown; of more, only those that went badly.
const openNodes = 2

// nodeView is a node and its pods.
type nodeView struct {
	observe.Node
	Score NodeScore
	Track track
	Open  bool // its pods are shown without being asked for
	Clean bool
	Pods  []podView
}

// track begins one of the node or of a pod on it.
func (x axis) track(n observe.Node) track {
	t := track{Grid: x.ticks()}
	if n.Deadline != nil {
		t.mark(x, *n.Deadline, "deadline", "deadline")
	}
	return t
}

// nodeTrack shows the phases and, below them, the replacement.
func (x axis) nodeTrack(n observe.Node) track {
	t := x.track(n)
	end := ptr.Deref(n.EndAt, x.begin.Add(x.whole))
	for i, p := range n.Phases {
		until := end
		if i+1 < len(n.Phases) {
			until = n.Phases[i+1].At
		}
		from := p.At
		if i == 0 {
			from = interruption.Earlier(from, n.Noticed)
		}
		if until.After(from) {
			t.bar(x, middle, from, until, "phase-"+strings.ToLower(string(p.Phase)), fmt.Sprintf("%s from %s", p.Phase, x.stamp(from)))
		}
	}
	if r := n.Replacement; r != nil && r.Name != "" {
		until := end
		if r.Ready != nil {
			until = *r.Ready
			t.bar(x, below, until, end, "ready", "replacement ready from "+x.stamp(until))
		}
		t.bar(x, below, r.Requested, until, "boots", "replacement requested at "+x.stamp(r.Requested))
	}
	return t
}

// podView is a pod that had to leave, and how it was forecast to end if that is not how it did.
type podView struct {
	observe.Pod
	Node  string
	Track track
	Had   plan.Outcome
}

func (x axis) pod(n observe.Node, p observe.Pod, forecast PodPair) podView {
	v := podView{Pod: p, Node: n.Name, Track: x.track(n)}
	if forecast.Forecast != p.Outcome {
		v.Had = forecast.Forecast
	}
	for _, s := range p.Steps {
		text := fmt.Sprintf("%s from %s to %s", s.State, x.stamp(s.From), x.stamp(s.To))
		if s.For != "" {
			text += ", " + map[bool]string{true: "", false: "for "}[s.State == status.Refused] + s.For
		}
		v.Track.bar(x, middle, s.From, s.To, string(s.State), text)
	}
	if gone := forecast.ForecastGone; gone != nil {
		v.Track.mark(x, x.begin.Add(time.Duration(float64(*gone)*float64(time.Second))), "forecast", "forecast: gone")
	}
	return v
}

// workloadView is a workload, and its ready pods over time.
type workloadView struct {
	WorkloadScore
	Needed string // by its budgets
	Track  track
}

// workload draws a bar for each number of ready pods, as high as their share of all.
func (x axis) workload(r observe.Recording, w observe.Workload, s WorkloadScore) workloadView {
	first, last, most := w.Samples[0], w.Samples[len(w.Samples)-1], 1
	for _, sample := range w.Samples {
		most = max(most, sample.Ready, sample.Desired)
	}
	t := track{Grid: x.ticks()}
	for i, sample := range w.Samples {
		until := r.To
		if i+1 < len(w.Samples) {
			until = w.Samples[i+1].At
		}
		class := "ready"
		if sample.Missing(first.Ready) > 0 {
			class = "missed"
		}
		height := (trackHeight - 2) * float64(sample.Ready) / float64(most)
		text := fmt.Sprintf("%d of %d ready from %s", sample.Ready, sample.Desired, x.stamp(sample.At))
		t.bar(x, band{trackHeight - height, height}, sample.At, until, class, text)
	}
	t.Text = fmt.Sprintf("%d of %d pods were ready at first, %d at the fewest, %d at the end.",
		first.Ready, first.Desired, w.Fewest, last.Ready)
	return workloadView{s, r.NeededBy(w), t}
}
