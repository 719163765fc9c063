package drain

import (
	"sync"
	"time"

	"spot-handler/drain/plan"
)

// sharedGangs are those of all draining nodes. They are safe for concurrent use.
type sharedGangs struct {
	mu sync.Mutex
	of *plan.Gangs
}

// report takes in what the pods of a node decide, see [plan.Gangs.Report].
func (g *sharedGangs) report(now time.Time, node string, own map[plan.Gang]plan.Departure) (others []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of.Report(now, node, own)
}

// concerning are the departures of the gangs of a node that has reported.
func (g *sharedGangs) concerning(node string) map[plan.Gang]plan.Departure {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of.Of(node)
}
