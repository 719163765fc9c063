package report

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/internal/observe"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/handler/interruption"
)

// track is a strip of time.
type track struct {
	Text  string // what it shows, in words
	Bars  []bar
	Marks []mark
	Grid  []tick
}

// bar is a time from X on, of the kind of its class.
type bar struct {
	X, Width, Class, Text string
	Low                   bool // below the others
}

// mark is a moment.
type mark struct{ X, Class, Text string }

// nodeView is a node and its pods.
type nodeView struct {
	ID, Name, Pool string
	Facts          []fact
	Track          track
	Open           bool // its pods are shown without being asked for
	Counts         string
	Clean          bool
	Slack          string
	Pods           []podView
}

type fact struct{ Name, Text string }

type podView struct {
	Name, Workload  string
	Track           track
	Grace, Gone     string
	Outcome, Reason string
	Class           string
}

// openNodes is how many nodes have their pods shown; of more, only those that went badly.
const openNodes = 2

func nodeOf(x axis, i int, n observe.Node, s NodeScore, pairs map[string]PodPair) nodeView {
	v := nodeView{
		ID: fmt.Sprintf("node-%d", i+1), Name: n.Name, Pool: n.Pool, Track: x.nodeTrack(n),
		Counts: s.Counts.String(), Clean: s.Graceful == len(n.Pods), Slack: both(s.Slack, nil), Facts: facts(x, n, s),
	}
	v.Open = i < openNodes || !v.Clean
	for _, p := range n.Pods {
		pair := pairs[n.Name+"/"+p.Namespace+"/"+p.Name]
		v.Pods = append(v.Pods, podOf(x, n, p, pair))
	}
	return v
}

func facts(x axis, n observe.Node, s NodeScore) []fact {
	var list []fact
	add := func(name, text string) {
		if text != "" {
			list = append(list, fact{name, text})
		}
	}
	add("Pool", n.Pool)
	add("Kind", strings.TrimSuffix(fmt.Sprintf("%s (%s)", n.Kind, n.Action), " ()"))
	if n.Deadline != nil {
		add("Deadline", x.stamp(*n.Deadline))
	}
	if n.Cordoned != nil {
		add("Cordoned", x.stamp(*n.Cordoned))
	}
	if r := n.Replacement; r != nil {
		add("Replacement", strings.TrimSpace(r.Name+" "+r.State)+map[bool]string{true: ", pool " + r.Pool}[r.Pool != ""])
		add("Replacement ready", strings.TrimPrefix(both(s.Ready, s.ForecastReady), console.None))
		add("Why", r.Reason)
	}
	add("Drain ended", strings.TrimPrefix(both(s.Ended, s.ForecastEnded), console.None))
	add("Slack", strings.TrimPrefix(both(s.Slack, s.ForecastSlack), console.None))
	switch {
	case n.End == observe.Gone:
		add("Node", "gone at "+x.stamp(*n.EndAt))
	case n.End == observe.Restored:
		add("Node", "back in service at "+x.stamp(*n.EndAt))
	}
	if c := n.Counted; c != nil && (Counts{c.Graceful, c.Truncated, c.Forced, c.Left, 0}) != countsOf(n.Pods) {
		add("By the record", Counts{c.Graceful, c.Truncated, c.Forced, c.Left, 0}.String()+": not what was seen here")
	}
	return list
}

// nodeTrack shows the phases and, below them, the replacement.
func (x axis) nodeTrack(n observe.Node) track {
	t := track{Grid: x.ticks()}
	end := x.begin.Add(x.whole)
	if n.EndAt != nil {
		end = *n.EndAt
	}
	var words []string
	for i, p := range n.Phases {
		until := end
		if i+1 < len(n.Phases) {
			until = n.Phases[i+1].At
		}
		from := p.At
		if i == 0 && n.Noticed.Before(from) {
			from = n.Noticed
		}
		text := fmt.Sprintf("%s from %s", p.Phase, x.stamp(from))
		words = append(words, text)
		if until.After(from) {
			t.Bars = append(t.Bars, x.bar(from, until, "phase-"+phaseClass(p.Phase), text))
		}
	}
	if r := n.Replacement; r != nil && r.Name != "" {
		until := end
		if r.Ready != nil {
			until = *r.Ready
			t.Bars = append(t.Bars, x.bar(*r.Ready, end, "ready", "replacement ready from "+x.stamp(*r.Ready)))
			words = append(words, "replacement ready from "+x.stamp(*r.Ready))
		}
		t.Bars = append(t.Bars, x.bar(r.Requested, until, "boots", "replacement requested at "+x.stamp(r.Requested)))
	}
	t.Marks = x.deadline(n)
	t.Text = strings.Join(words, "; ")
	return t
}

// phaseClass is how a phase is drawn: what has happened counts, not how it is called.
func phaseClass(p interruption.Phase) string {
	switch p {
	case interruption.Waiting, interruption.Noticed:
		return "noticed"
	case interruption.Replacing:
		return "replacing"
	case interruption.Draining:
		return "draining"
	case interruption.DeadlineReached:
		return "deadline"
	}
	return "drained"
}

func (x axis) bar(from, until time.Time, class, text string) bar {
	const least = 1.5 // units: what is shorter would not be seen
	a, b := x.at(from), x.at(until)
	return bar{number(min(a, trackWidth-least)), number(max(least, b-a)), class, text, class == "boots" || class == "ready"}
}

func (x axis) deadline(n observe.Node) []mark {
	if n.Deadline == nil || !x.shows(*n.Deadline) {
		return nil
	}
	return []mark{{x.x(*n.Deadline), "deadline", "deadline at " + x.stamp(*n.Deadline)}}
}

func podOf(x axis, n observe.Node, p observe.Pod, pair PodPair) podView {
	v := podView{
		Name: p.Namespace + "/" + p.Name, Workload: p.Workload, Grace: fmt.Sprintf("%d s", p.GraceSeconds), Gone: console.None,
		Outcome: outcomeText(p.Outcome), Class: cmp.Or(string(p.Outcome), "open"), Track: track{Grid: x.ticks(), Marks: x.deadline(n)},
	}
	if p.GivenSeconds != nil {
		v.Grace = fmt.Sprintf("%d of %d s", *p.GivenSeconds, p.GraceSeconds)
	}
	if p.Gone != nil {
		v.Gone = x.stamp(*p.Gone)
	}
	var words []string
	for _, s := range p.Steps {
		text := fmt.Sprintf("%s from %s to %s", s.State, x.stamp(s.From), x.stamp(s.To))
		if s.For != "" {
			text += ", " + map[bool]string{true: "", false: "for "}[s.State == status.Refused] + s.For
		}
		words = append(words, text)
		v.Track.Bars = append(v.Track.Bars, x.bar(s.From, s.To, string(s.State), text))
	}
	v.Track.Text = strings.Join(words, "; ")
	if f := pair.ForecastGone; f != nil {
		at := x.begin.Add(time.Duration(float64(*f) * float64(time.Second)))
		if x.shows(at) {
			v.Track.Marks = append(v.Track.Marks, mark{x.x(at), "forecast", "forecast: gone at " + x.stamp(at)})
		}
	}
	if pair.Forecast != "" && pair.Forecast != p.Outcome {
		v.Reason = "forecast: " + outcomeText(pair.Forecast)
	}
	return v
}
