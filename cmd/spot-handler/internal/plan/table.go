package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/handler/interruption"
)

// Lines show the forecast, in so many columns of a terminal; 0 is no terminal.
func Lines(f Forecast, width int) []string {
	lines := []string{summary(f)}
	for _, part := range [][]string{
		console.Table(nodeColumns, console.Rows(f.Nodes, nodeRow), width),
		capacity(f.Nodes, width),
		console.Table(podColumns, console.Rows(worstFirst(f.Pods), podRow), width),
		console.Table(workloadColumns, console.Rows(f.Workloads, workloadRow), width),
		console.Table(budgetColumns, console.Rows(f.Budgets, budgetRow), width),
	} {
		if len(part) > 1 { // more than the titles
			lines = append(append(lines, ""), part...)
		}
	}
	if f.DryRun != nil {
		lines = append(append(lines, ""), answers(*f.DryRun, width)...)
	}
	if len(f.Underway) > 0 {
		underway := "Interrupted already, and taken into account: " + strings.Join(f.Underway, ", ")
		lines = append(append(lines, ""), console.Wrap(underway, "", width)...)
	}
	lines = append(append(lines, ""), console.Wrap("Assumed: "+assumed(f.Assumptions), "", width)...)
	return append(lines, console.Wrap("Settings: "+f.Settings, "", width)...)
}

// summary is the forecast in one line.
func summary(f Forecast) string {
	counts := map[Outcome]int{}
	for _, p := range f.Pods {
		counts[p.Outcome]++
	}
	text := fmt.Sprintf("%s lost: %s", console.Count(len(f.Nodes), "node"), console.Count(len(f.Pods), "pod"))
	for _, o := range outcomes() {
		if n := counts[o]; n > 0 {
			text += ", " + interruption.Outcome{Name: string(o), Pods: n}.String()
		}
	}
	dip := 0.0
	for _, w := range f.Workloads {
		dip += w.UnavailablePodSeconds
	}
	return text + fmt.Sprintf("; %.0f unavailable pod-seconds.", dip)
}

func assumed(a Assumptions) string {
	var parts []string
	for _, one := range []struct {
		what string
		of   Assumption
	}{{"boot", a.Boot}, {"ready", a.Ready}, {"stop", a.Stop}, {"detach", a.Detach}} {
		parts = append(parts, fmt.Sprintf("%s %s (%s)", one.what, seconds(&one.of.Value), one.of.From))
	}
	if n := len(a.ReadyOf); n > 0 {
		parts = append(parts, fmt.Sprintf("ready of %s by their own history", console.Count(n, "workload")))
	}
	return strings.Join(parts, ", ") + "."
}

// worstFirst has first what needs attention, and then what leaves first.
func worstFirst(pods []Pod) []Pod {
	badness := []Outcome{Left, Forced, Truncated, Graceful, Stays}
	worst := slices.Clone(pods)
	slices.SortStableFunc(worst, func(a, b Pod) int {
		if d := slices.Index(badness, a.Outcome) - slices.Index(badness, b.Outcome); d != 0 || a.Leaves == nil || b.Leaves == nil {
			return d
		}
		return cmp.Compare(*a.Leaves, *b.Leaves)
	})
	return worst
}

var nodeColumns = []console.Column{
	{Title: "NODE"}, {Title: "KIND", Drop: 1}, {Title: "DEADLINE"}, {Title: "EMPTY"}, {Title: "SLACK"},
}

func nodeRow(n Node) []console.Cell {
	empty := console.Cell{Text: seconds(n.Empty)}
	if n.Empty == nil && n.Deadline != nil {
		empty = console.Cell{Text: "never", Colour: console.Bad}
	}
	return []console.Cell{{Text: n.Name}, {Text: string(n.Kind)}, {Text: seconds(n.Deadline)}, empty, {Text: seconds(n.Slack)}}
}

var podColumns = []console.Column{
	{Title: "POD"}, {Title: "NODE", Drop: 1}, {Title: "GRACE", Drop: 4}, {Title: "EVICT BY", Drop: 2}, {Title: "LEAVES"},
	{Title: "GONE", Drop: 3}, {Title: "OUTCOME"}, {Title: "WAITS FOR, AND WHY"},
}

var colours = map[Outcome]console.Colour{
	Graceful: console.Good, Truncated: console.Notable, Forced: console.Bad, Left: console.Bad,
}

func podRow(p Pod) []console.Cell {
	return []console.Cell{
		{Text: p.Namespace + "/" + p.Name}, {Text: p.Node}, {Text: seconds(&p.Grace)}, {Text: by(p.EvictBy)}, {Text: seconds(p.Leaves)},
		{Text: seconds(p.Gone)}, {Text: interruption.OutcomeText(string(p.Outcome)), Colour: colours[p.Outcome]}, {Text: why(p)},
	}
}

// by is the eviction deadline; one that has passed before the notice came is of no use to anybody.
func by(s *Seconds) string {
	if s != nil && *s < 0 {
		return "past"
	}
	return seconds(s)
}

// why is what the pod waits for, what becomes of it, and why it is not surged.
func why(p Pod) string {
	parts := []string{p.WaitsFor, p.Reason, ""}
	if p.NoSurge != "" && p.Outcome != Stays {
		parts[2] = "not surged: " + p.NoSurge
	}
	return or(joined("; ", parts...))
}

var workloadColumns = []console.Column{
	{Title: "WORKLOAD"}, {Title: "REPLICAS"}, {Title: "READY"}, {Title: "FEWEST READY"}, {Title: "AT"}, {Title: "UNAVAILABLE"},
	{Title: "NO PLACE"},
}

func workloadRow(w Workload) []console.Cell {
	colour, when, unplaced := console.Good, console.None, console.Cell{Text: console.None}
	if w.FewestReady < w.Ready {
		colour, when = console.Notable, seconds(&w.At)
	}
	if w.Unplaced > 0 {
		unplaced = console.Cell{Text: console.Count(w.Unplaced, "pod"), Colour: console.Bad}
	}
	return []console.Cell{
		{Text: w.Namespace + "/" + w.Name},
		{Text: fmt.Sprint(w.Replicas)},
		{Text: fmt.Sprint(w.Ready)},
		{Text: fmt.Sprint(w.FewestReady), Colour: colour},
		{Text: when},
		{Text: fmt.Sprintf("%.0f pod-s", w.UnavailablePodSeconds)},
		unplaced,
	}
}

var budgetColumns = []console.Column{
	{Title: "BUDGET"}, {Title: "COVERS"}, {Title: "DESIRED"}, {Title: "HEALTHY"}, {Title: "FEWEST HEALTHY"}, {Title: "AT"},
	{Title: "SHORT"}, {Title: "REFUSES"},
}

func budgetRow(b Budget) []console.Cell {
	when := console.None
	if b.FewestHealthy < b.Healthy {
		when = seconds(&b.At)
	}
	return []console.Cell{
		{Text: b.Namespace + "/" + b.Name},
		{Text: fmt.Sprint(b.Covers)},
		{Text: fmt.Sprint(b.Desired)},
		{Text: fmt.Sprint(b.Healthy)},
		{Text: fmt.Sprint(b.FewestHealthy)},
		{Text: when},
		{Text: fmt.Sprintf("%.0f pod-s", b.UnavailablePodSeconds)},
		{Text: console.Count(b.Refused, "pod")},
	}
}

func seconds(s *Seconds) string {
	if s == nil {
		return console.None
	}
	return fmt.Sprintf("%.0f s", float64(*s))
}

var capacityColumns = []console.Column{
	{Title: "IN PLACE OF"},
	{Title: "BY", Drop: 2},
	{Title: "FROM"},
	{Title: "READY"},
	{Title: "PODS"},
	{Title: "ASKS FOR", Drop: 1},
	{Title: "WHY"},
}

// capacity shows what is asked for in each node's place.
func capacity(nodes []Node, width int) []string {
	var rows [][]console.Cell
	var others []string
	for _, n := range nodes {
		r := n.Replacement
		if r == nil {
			continue
		}
		ready, why := console.Cell{Text: seconds(r.Ready)}, console.Cell{Text: or(r.Why)}
		if r.Ready == nil {
			ready = console.Cell{Text: "never", Colour: console.Bad}
		}
		if len(r.NoPlace) > 0 {
			why = console.Cell{Text: joined("; ", r.Why, "no place: "+strings.Join(r.NoPlace, "; ")), Colour: console.Notable}
		}
		rows = append(rows, []console.Cell{
			{Text: n.Name},
			{Text: or(r.Backend)},
			{Text: or(joined(", ", r.Pool, r.InstanceType))},
			ready,
			{Text: fmt.Sprint(r.Pods)},
			{Text: or(requests(r.Requests))},
			why,
		})
		for _, o := range r.Others {
			if text := "Not from " + o.Name + ": " + or(o.Why); !slices.Contains(others, text) {
				others = append(others, text)
			}
		}
	}
	return append(console.Table(capacityColumns, rows, width), others...)
}

// joined leaves out what is empty.
func joined(separator string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), separator)
}

func or(text string) string { return cmp.Or(text, console.None) }

func requests(list corev1.ResourceList) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if q := list[name]; name != corev1.ResourcePods {
			parts = append(parts, string(name)+" "+q.String())
		}
	}
	return strings.Join(parts, ", ")
}

var trialColumns = []console.Column{{Title: "REFUSED"}, {Title: "OF"}, {Title: "THE API SERVER SAYS"}}

// answers shows what the API server refused.
func answers(a Answers, width int) []string {
	said := fmt.Sprintf("Asked the API server %s, as %s: ", console.Count(a.Tried, "time"), strings.Join(a.As, " and "))
	if len(a.Refused) == 0 {
		return []string{said + "it refuses nothing."}
	}
	var rows [][]console.Cell
	refused := 0
	for _, r := range a.Refused {
		refused += len(r.Objects)
		colour, why := console.Bad, r.Why
		if r.Budget {
			colour, why = console.Notable, "now, by a PDB: "+why
		}
		of := r.Objects[0]
		if more := len(r.Objects) - 1; more > 0 {
			of += fmt.Sprintf(" and %d more", more)
		}
		rows = append(rows, []console.Cell{{Text: r.Verb, Colour: colour}, {Text: of}, {Text: why}})
	}
	return append([]string{said + fmt.Sprintf("it refuses %d.", refused), ""}, console.Table(trialColumns, rows, width)...)
}
