package drain

import (
	"context"
	"sync"
	"time"
)

const (
	// patience is how long a request keeps its seat. The API server answers in milliseconds,
	// or in a second or two when a burst is more than its processors can take. An admission
	// webhook that hangs has up to evictTimeout, and others must not stand still for it.
	patience = 3 * time.Second

	// lentPerSeat is how many requests without a seat there can be for each seat: with 32
	// seats at most 128 requests are under way, about half of what the API server lets through
	// at once for all workloads by default.
	lentPerSeat = 3

	// calm is how long ago the API server's last refusal must be before a seat is lent.
	calm = 10 * time.Second
)

// pace decides how many requests are under way at once: as many as there are workers, and
// fewer when the API server's priority and fairness turns some away. Each refusal halves the
// limit, and a full round of requests without one adds one. A request that takes longer than
// patience lends its seat to another, but not soon after a refusal: then it might be slow
// because the API server has too much to do.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
type pace struct {
	mu     sync.Mutex
	free   *sync.Cond
	most   int
	limit  int
	active int // requests with a seat
	lent   int // requests that have lent theirs and are still under way
	good   int // answers in a row that were not refusals
	stale  int // requests under way that were sent before the limit was last cut

	refused time.Time // last; zero is never
}

func newPace(most int) *pace {
	p := &pace{most: most, limit: most}
	p.free = sync.NewCond(&p.mu)
	return p
}

// begin waits for a seat; false means that ctx has ended.
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

// do makes a request in the seat that begin has found, and gives the seat back. The
// request says whether the API server was too busy for it.
func (p *pace) do(request func() (busy bool)) {
	var over, lent bool // guarded by p.mu, as is
	var slow *time.Timer
	p.mu.Lock()
	slow = time.AfterFunc(patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if over || p.lent == p.most*lentPerSeat {
			return
		}
		if wait := calm - time.Since(p.refused); wait > 0 {
			slow.Reset(wait)
			return
		}
		lent = true
		p.lent++
		p.active--
		p.free.Broadcast()
	})
	p.mu.Unlock()
	busy := request()
	slow.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	over = true
	if lent {
		p.lent--
	} else {
		p.active--
	}
	p.adapt(busy)
	p.free.Broadcast()
}

// adapt adapts the limit to what the API server has said.
func (p *pace) adapt(busy bool) {
	old := p.stale > 0
	if old {
		p.stale--
	}
	if busy {
		p.refused = time.Now()
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
}

// wake makes those who wait look at their ctx.
func (p *pace) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free.Broadcast()
}
