package drain

import (
	"context"
	"sync"
	"time"
)

const (
	// slowAfter is how long a request keeps its place. One takes milliseconds, but an
	// admission webhook that does not answer takes all of evictTimeout, and the pods that it
	// is about are on every node: they must not hold up all others.
	slowAfter = time.Second
	// slowAtMost is how many requests without a place there may be for each with one.
	slowAtMost = 8
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
	lent   int // requests under way whose places others have
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

// run makes a request in the place that begin has given, and ends that. If the request is
// slow, and the API server has not said that it is busy, others have the place meanwhile.
func (p *pace) run(request func() (busy bool)) {
	lent, over := false, false
	slow := time.AfterFunc(slowAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !over && p.limit == p.most && p.lent < slowAtMost*p.most {
			lent, p.lent, p.active = true, p.lent+1, p.active-1
			p.free.Broadcast()
		}
	})
	busy := request()
	slow.Stop()
	p.mu.Lock()
	if over = true; lent {
		p.lent, p.active = p.lent-1, p.active+1
	}
	p.mu.Unlock()
	p.end(busy)
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
		p.limit, p.good, p.stale = max(1, p.limit/2), 0, p.active+p.lent
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
