package drain

import (
	"context"
	"sync"
)

// pace is how many requests are under way at once: as many as there are workers, and
// fewer when the API server's priority and fairness turns some away. Each refusal halves
// it, a full round of requests without one adds one.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
type pace struct {
	mu     sync.Mutex
	free   *sync.Cond
	most   int
	limit  int
	active int
	good   int // answers in a row that were not refusals
	stale  int // requests under way that were sent before the limit was last cut
}

func newPace(most int) *pace {
	p := &pace{most: most, limit: most}
	p.free = sync.NewCond(&p.mu)
	return p
}

// begin waits for a place; false means that ctx has ended.
func (p *pace) begin(ctx context.Context) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.active >= p.limit && ctx.Err() == nil {
		p.free.Wait()
	}
	if ctx.Err() != nil {
		return false
	}
	p.active++
	return true
}

// end gives the place back, with whether the API server was too busy.
func (p *pace) end(busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active--
	old := p.stale > 0
	if old {
		p.stale--
	}
	switch {
	case busy && !old:
		p.limit, p.good, p.stale = max(1, p.limit/2), 0, p.active
	case busy:
		p.good = 0
	default:
		p.good++
		if p.good >= p.limit && p.limit < p.most {
			p.limit, p.good = p.limit+1, 0
		}
	}
	p.free.Broadcast()
}

// wake has those who wait look at their ctx.
func (p *pace) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free.Broadcast()
}
