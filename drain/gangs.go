package drain

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Gangs keeps the departures of the gangs that have pods on draining nodes. A gang that has begun
// to leave goes on, even where the pod that was the reason has gone. Its methods are safe for
// concurrent use.
type Gangs struct {
	mu     sync.Mutex
	byNode map[string]map[Gang]Departure // what the pods of each node decide
	byGang map[Gang]*leavingGang
}

type leavingGang struct {
	nodes     map[string]struct{}
	Departure // Now and Asked stay set: it has begun
}

// NewGangs returns a Gangs that knows of none.
func NewGangs() *Gangs {
	return &Gangs{byNode: map[string]map[Gang]Departure{}, byGang: map[Gang]*leavingGang{}}
}

// Report takes in what the pods of a node decide, and returns the other nodes that have to be
// planned again because of it. With nil the node has no part any more.
func (g *Gangs) Report(now time.Time, node string, own map[Gang]Departure) (others []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.byNode[node]
	if len(own) == 0 {
		delete(g.byNode, node)
	} else {
		g.byNode[node] = own
	}
	again := map[string]struct{}{}
	for gang := range before {
		if _, still := own[gang]; !still {
			delete(g.byGang[gang].nodes, node)
			g.renewLocked(now, gang, again)
		}
	}
	for gang, departure := range own {
		of := g.byGang[gang]
		if of == nil {
			of = &leavingGang{nodes: map[string]struct{}{}}
			g.byGang[gang] = of
		}
		of.nodes[node] = struct{}{}
		if was, known := before[gang]; !known || was != departure || !of.Now && !departure.At.IsZero() && !now.Before(of.At) {
			g.renewLocked(now, gang, again)
		}
	}
	delete(again, node)
	return slices.Collect(maps.Keys(again))
}

// renewLocked works out a gang's departure, and adds its nodes to those to be planned again if that
// has changed.
func (g *Gangs) renewLocked(now time.Time, gang Gang, again map[string]struct{}) {
	of := g.byGang[gang]
	if len(of.nodes) == 0 {
		delete(g.byGang, gang)
		return
	}
	all := Departure{Now: of.Now, Asked: of.Asked}
	for node := range of.nodes {
		all = all.with(g.byNode[node][gang])
	}
	all.Now = all.Now || !all.At.IsZero() && !now.Before(all.At)
	if all != of.Departure {
		of.Departure = all
		maps.Copy(again, of.nodes)
	}
}

// leaves reports whether the gang's pods on the node have to leave it by a deadline.
func (g *Gangs) leaves(node string, gang Gang) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.byNode[node][gang].At.IsZero()
}

// Of are the departures of the gangs of a node that has reported, never nil.
func (g *Gangs) Of(node string) map[Gang]Departure {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[Gang]Departure, len(g.byNode[node]))
	for gang := range g.byNode[node] {
		all[gang] = g.byGang[gang].Departure
	}
	return all
}
