package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"spot-handler/cmd/spot-handler/internal/console"
	"spot-handler/cmd/spot-handler/terminal"
)

var capacityColumns = []console.Column{
	{Title: "IN PLACE OF", Least: 12}, {Title: "BY", Drop: 2}, {Title: "POOL", Least: 8}, {Title: "PODS"}, {Title: "ASKS FOR", Least: 16, Drop: 1}, {Title: "WHY", Least: 24},
}

// capacity tells what is asked for in each node's place.
func capacity(nodes []Node, width int) []string {
	var rows [][]console.Cell
	var others []string
	for _, n := range nodes {
		r := n.Replacement
		if r == nil {
			continue
		}
		why := console.Cell{Text: or(r.Why)}
		if r.Ready == nil {
			why.Colour = terminal.Bad
		}
		if len(r.NoPlace) > 0 {
			why.Text = strings.TrimPrefix(r.Why+"; ", "; ") + "no place: " + strings.Join(r.NoPlace, "; ")
			why.Colour = terminal.Notable
		}
		rows = append(rows, []console.Cell{
			{Text: n.Name}, {Text: or(r.Backend)}, {Text: or(r.Pool)}, {Text: fmt.Sprint(r.Pods)}, {Text: or(requests(r.Requests))}, why,
		})
		for _, o := range r.Others {
			if text := "Not from " + o.Name + ": " + or(o.Why); !slices.Contains(others, text) {
				others = append(others, text)
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return append(console.Table(capacityColumns, rows, width), others...)
}

func or(text string) string {
	if text == "" {
		return none
	}
	return text
}

func requests(list map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if name != "pods" {
			parts = append(parts, name+" "+list[name])
		}
	}
	return strings.Join(parts, ", ")
}

var trialColumns = []console.Column{{Title: "REFUSED", Least: 16}, {Title: "OF", Least: 16}, {Title: "THE API SERVER SAYS", Least: 24}}

// answers tells what the API server refused.
func answers(a Answers, width int) []string {
	said := fmt.Sprintf("Asked the API server %s, as %s: ", count(a.Tried, "time"), strings.Join(a.As, " and "))
	if len(a.Refused) == 0 {
		return []string{said + "it refuses nothing."}
	}
	var rows [][]console.Cell
	refused := 0
	for _, r := range a.Refused {
		refused += len(r.Objects)
		colour, why := terminal.Bad, r.Why
		if r.Budget {
			colour, why = terminal.Notable, "now, by a disruption budget: "+why
		}
		of := r.Objects[0]
		if more := len(r.Objects) - 1; more > 0 {
			of += fmt.Sprintf(" and %d more", more)
		}
		rows = append(rows, []console.Cell{{Text: r.Verb, Colour: colour}, {Text: of}, {Text: why}})
	}
	return append([]string{said + fmt.Sprintf("it refuses %d.", refused), ""}, console.Table(trialColumns, rows, width)...)
}
