package report

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/handler/interruption"
)

//go:embed page.html.tmpl
var pageText string

//go:embed page.css
var pageStyle string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// WriteHTML writes the report as one page, which refers to nothing outside itself and runs no
// script.
func (r Report) WriteHTML(w io.Writer) error { return pageTemplate.Execute(w, r.page()) }

// page is what the template shows: all is worded and measured, so the template only arranges it.
type page struct {
	Report
	Title, When string
	Style       template.CSS
	Tiles       []tile
	Share       []shareOf // of the pods, by outcome
	Axis        []tick
	Nodes       []nodeView
	Charts      []chart
	Calm        []chart // of many, those that missed no pod
	Refusals    []refusalView
	Assumptions []assumptionView
}

// Several reports whether there were several nodes.
func (p page) Several() bool { return len(p.Nodes) > 1 }

// tile is a figure that is seen first.
type tile struct{ Figure, Label, Note, Tone string }

// shareOf is how much of a bar an outcome takes, in percent.
type shareOf struct {
	interruption.Outcome
	Percent string
}

type refusalView struct{ Pod, Node, By, Reason, From, For string }

// Hit reports whether the pod ended as forecast.
func (p PodPair) Hit() bool { return p.Forecast == "" || p.Forecast == p.Outcome }

// Was is how the pod ended.
func (p PodPair) Was() string { return outcomeText(p.Outcome) }

// Had is how it was forecast to end.
func (p PodPair) Had() string {
	return cmp.Or(interruption.OutcomeText(string(p.Forecast)), console.None)
}

// At shows a time of the pod's.
func (PodPair) At(seconds *plan.Seconds) string { return both(seconds, nil) }

type assumptionView struct{ What, Value, From string }

// The tones of figures.
const (
	good = "good"
	bad  = "bad"
)

// fewCharts are looked at one by one.
const fewCharts = 6

func (r Report) page() page {
	s, rec := r.Score, r.Recording
	x := axisOf(rec)
	p := page{
		Report: r, Title: cmp.Or(r.Title, r.title()), When: r.when(), Style: template.CSS(pageStyle),
		Tiles: r.tiles(), Share: s.Counts.shares(s.Pods), Axis: x.ticks(),
	}
	pairs := map[string]PodPair{}
	if s.Forecast != nil {
		for _, pair := range s.Forecast.Pairs {
			pairs[pair.Node+"/"+pair.Namespace+"/"+pair.Name] = pair
		}
		p.Assumptions = assumptions(r.Forecast.Assumptions)
	}
	for i, n := range rec.Nodes {
		p.Nodes = append(p.Nodes, nodeOf(x, i, n, s.Nodes[i], pairs))
		p.Refusals = append(p.Refusals, refusals(x, n, rec.Budgets)...)
	}
	for _, w := range rec.Workloads {
		switch {
		case len(w.Samples) == 0:
		case w.Missing == 0 && len(rec.Workloads) > fewCharts:
			p.Calm = append(p.Calm, chartOf(x, w, rec, s))
		default:
			p.Charts = append(p.Charts, chartOf(x, w, rec, s))
		}
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

// when is the time and the kinds.
func (r Report) when() string {
	kinds := map[string]int{}
	var order []string
	for _, n := range r.Recording.Nodes {
		kind := strings.ReplaceAll(string(n.Kind), "-", " ")
		if kinds[kind]++; kinds[kind] == 1 {
			order = append(order, kind)
		}
	}
	begin := r.Recording.Begin()
	text := begin.UTC().Format("2 January 2006, 15:04:05 UTC")
	if len(order) > 0 {
		text += " · " + strings.Join(order, ", ")
	}
	return text + fmt.Sprintf(" · followed for %s", console.Duration(r.Recording.To.Sub(begin)))
}

func (r Report) tiles() []tile {
	s := r.Score
	list := []tile{{Figure: fmt.Sprintf("%d of %d", s.Graceful, s.Pods), Label: "pods ended gracefully", Note: others(s.Counts), Tone: tone(s.Graceful == s.Pods)}}
	if s.SlackSeconds != nil {
		list = append(list, tile{fmt.Sprintf("%.0f s", *s.SlackSeconds), "slack", "left until the deadline when the last drain ended", tone(*s.SlackSeconds > 0 && s.Left == 0)})
	}
	if len(s.Workloads) > 0 {
		t := tile{Figure: fmt.Sprint(s.Dip), Label: "ready pods missed at most", Note: "no workload lost a ready pod", Tone: tone(s.Dip == 0)}
		if s.Dip > 0 {
			t.Note = fmt.Sprintf("%.1f pod-seconds unavailable in all", s.UnavailableSeconds)
		}
		list = append(list, t)
	}
	if c := s.Forecast; c != nil {
		note := "every pod"
		if len(c.Misses) > 0 {
			note = console.Count(len(c.Misses), "pod") + " did not"
		}
		if c.Later > 0 {
			note += fmt.Sprintf("; %d more came later", c.Later)
		}
		list = append(list, tile{fmt.Sprintf("%d of %d", c.AsForecast, c.Of), "pods ended as forecast", note, tone(len(c.Misses) == 0)})
	}
	return list
}

func others(c Counts) string {
	if c.Truncated+c.Forced+c.Left+c.Open == 0 {
		return "none was cut short or left"
	}
	c.Graceful = 0
	return c.String()
}

func tone(ok bool) string {
	if ok {
		return good
	}
	return bad
}

func (c Counts) shares(of int) (list []shareOf) {
	for _, o := range c.outcomes() {
		list = append(list, shareOf{o, fmt.Sprintf("%.3f", 100*float64(o.Pods)/float64(of))})
	}
	return list
}

func refusals(x axis, n observe.Node, budgets []observe.Budget) []refusalView {
	var list []refusalView
	for _, p := range n.Pods {
		if p.Refusal == nil {
			continue
		}
		by := console.None
		var names []string
		for _, b := range budgets {
			if b.Namespace == p.Namespace && strings.Contains(p.Refusal.Reason, b.Name) {
				names = append(names, b.Name)
			}
		}
		if len(names) > 0 {
			by = strings.Join(names, ", ")
		}
		until := n.EndAt
		for _, end := range []*time.Time{p.Evicted, p.Gone} {
			if end != nil && (until == nil || end.Before(*until)) {
				until = end
			}
		}
		view := refusalView{Pod: p.Namespace + "/" + p.Name, Node: n.Name, By: by, Reason: p.Refusal.Reason, From: x.stamp(p.Refusal.From), For: "to the end"}
		if until != nil {
			view.For = fmt.Sprintf("%.1f s", until.Sub(p.Refusal.From).Seconds())
		}
		list = append(list, view)
	}
	return list
}

func assumptions(a plan.Assumptions) []assumptionView {
	list := []assumptionView{
		of("A replacement boots", a.Boot), of("A pod becomes ready", a.Ready),
		of("A pod ends, once it is evicted", a.Stop), of("A volume is detached", a.Detach),
	}
	var names []string
	for name := range a.ReadyOf {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		list = append(list, of("A pod of "+name+" becomes ready", a.ReadyOf[name]))
	}
	return list
}

func of(what string, a plan.Assumption) assumptionView {
	return assumptionView{what, fmt.Sprintf("%.1f s", a.Value), a.From}
}
