package drain

import (
	"maps"
	"slices"
	"sync"
	"time"

	"spot-handler/handler/interruption"
)

// A gang that loses one pod loses its work, so its pods on draining nodes stay to the last moment
// that is safe for all of them, and leave together. The others have nothing to wait for once one of
// them leaves. What a pod asks for itself overrides its gang, and its gang overrides its namespace.
//
// From a node that is only at risk they leave when one of them asks to, and for nothing else: an
// operator that removes an idle worker there has no use for the end of the others.

// Departure is when those pods of a gang leave that have to.
type Departure struct {
	// At is when the first of them has to; zero if the nodes of all of them are only at risk.
	At time.Time
	// Now: one of them leaves a node that ends, or asks to leave.
	Now bool
	// Asked: one of them asks to. That goes for nodes that are only at risk, too.
	Asked bool
}

// with is the departure of the pods of both.
func (d Departure) with(other Departure) Departure {
	d.At = interruption.Earlier(d.At, other.At)
	d.Now, d.Asked = d.Now || other.Now, d.Asked || other.Asked
	return d
}

// Departures are those of the gangs that the node's pods belong to, as far as these pods decide
// them; nil if they belong to none.
func (s Situation) Departures() map[Gang]Departure {
	p := planner{Situation: s}
	var found map[Gang]Departure
	for _, pod := range s.Pods {
		gang := gangOf(pod)
		if gang == (Gang{}) || p.notOurs(pod) != "" {
			continue
		}
		if found == nil {
			found = map[Gang]Departure{}
		}
		asks, latest := p.ownPreference(pod) == WhenNow, evictionDeadline(pod, p.Deadline, p.Policy.Margin)
		found[gang] = found[gang].with(Departure{
			At: p.startOf(pod, latest, time.Time{}), Asked: asks, Now: asks || pod.DeletionTimestamp != nil && !p.Deadline.IsZero(),
		})
	}
	return found
}

// Gangs keeps the departures of the gangs that have pods on draining nodes. A gang that has begun
// to leave goes on, even where the pod that was the reason has gone. Its methods are safe for
// concurrent use.
type Gangs struct {
	mu sync.Mutex
	of map[Gang]*leavingGang
}

type leavingGang struct {
	nodes     map[string]Departure // what the pods of each node decide
	Departure                      // Now and Asked stay set: it has begun
}

// NewGangs returns a Gangs that knows of none.
func NewGangs() *Gangs { return &Gangs{of: map[Gang]*leavingGang{}} }

// Report takes in what the pods of a node decide, and returns the other nodes that have to be
// planned again because of it. With nil the node has no part any more.
func (g *Gangs) Report(now time.Time, node string, own map[Gang]Departure) (others []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for gang, departure := range own {
		if g.of[gang] == nil {
			g.of[gang] = &leavingGang{nodes: map[string]Departure{}}
		}
		g.of[gang].nodes[node] = departure
	}
	again := map[string]bool{}
	for gang, of := range g.of {
		if _, has := of.nodes[node]; !has {
			continue
		}
		if _, still := own[gang]; !still {
			delete(of.nodes, node)
		}
		if len(of.nodes) == 0 {
			delete(g.of, gang)
			continue
		}
		all := Departure{Now: of.Now, Asked: of.Asked}
		for _, departure := range of.nodes {
			all = all.with(departure)
		}
		all.Now = all.Now || !all.At.IsZero() && !now.Before(all.At)
		if all == of.Departure {
			continue
		}
		of.Departure = all
		for other := range of.nodes {
			again[other] = true
		}
	}
	delete(again, node)
	return slices.Collect(maps.Keys(again))
}

// Of are the departures of the gangs of a node that has reported, never nil.
func (g *Gangs) Of(node string) map[Gang]Departure {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[Gang]Departure{}
	for gang, of := range g.of {
		if _, has := of.nodes[node]; has {
			all[gang] = of.Departure
		}
	}
	return all
}
