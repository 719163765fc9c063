package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"time"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/plan"
)

//go:embed page.html.tmpl
var pageText string

//go:embed page.css
var pageStyle string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"outcome": outcomeText,
	"both":    both,
	"seconds": func(s *plan.Seconds) string { return both(s, nil) },
}).Parse(pageText))

// WriteHTML writes the report as one page, which refers to nothing outside itself and runs no
// script.
func (r Report) WriteHTML(w io.Writer) error { return pageTemplate.Execute(w, r.page()) }

// page is what the template shows.
type page struct {
	Report
	Title, When string
	Style       template.CSS
	Axis        []tick
	Nodes       []nodeView
	Workloads   []workloadView
	Refused     []podView
}

// Several reports whether there were several nodes.
func (p page) Several() bool { return len(p.Nodes) > 1 }

// At is a time in seconds since the first notice.
func (p page) At(t *time.Time) string { return both(since(p.Recording.Begin(), t), nil) }

// Slack is the least of all nodes.
func (p page) Slack() string { return both(seconds(p.Score.SlackSeconds), nil) }

// InTime reports whether the last drain ended before its deadline, and every pod had left.
func (p page) InTime() bool { return *p.Score.SlackSeconds > 0 && p.Score.Left == 0 }

func (r Report) page() page {
	s, rec := r.Score, r.Recording
	x := axisOf(rec)
	begin := rec.Begin()
	p := page{
		Report: r, Title: r.title(), Style: template.CSS(pageStyle), Axis: x.ticks(),
		When: fmt.Sprintf("%s · followed for %s", begin.UTC().Format("2 January 2006, 15:04:05 UTC"), console.Duration(rec.To.Sub(begin))),
	}
	forecast := map[string]PodPair{}
	if s.Forecast != nil {
		for _, pair := range s.Forecast.Pairs {
			forecast[pair.Node+"/"+pair.Namespace+"/"+pair.Name] = pair
		}
	}
	for i, n := range rec.Nodes {
		v := x.node(n, s.Nodes[i])
		v.Open = i < openNodes || !v.Clean
		for _, pod := range n.Pods {
			v.Pods = append(v.Pods, x.pod(n, pod, forecast[n.Name+"/"+pod.Namespace+"/"+pod.Name]))
		}
		p.Nodes = append(p.Nodes, v)
		p.Refused = append(p.Refused, slices.DeleteFunc(slices.Clone(v.Pods), func(pod podView) bool { return pod.Refusal == nil })...)
	}
	for i, w := range rec.Workloads {
		if len(w.Samples) > 0 {
			p.Workloads = append(p.Workloads, x.workload(rec, w, s.Workloads[i]))
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
