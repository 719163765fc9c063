package drain

import (
	"container/heap"
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

// pace decides how many requests are under way at once: as many as there are seats, and
// fewer when the API server's priority and fairness turns some away. Each refusal halves the
// limit, and a full round of requests without one adds one. A request that takes longer than
// patience lends its seat to another, but not soon after a refusal: then it might be slow
// because the API server has too much to do.
// https://kubernetes.io/docs/concepts/cluster-administration/flow-control/
//
// What hangs for one namespace, such as an admission webhook, must not hold up the requests for
// others: a namespace can take seven eighths of the seats that the others leave, and half of
// them while some of its requests have lent theirs. It can have half of those requests that can
// be under way without a seat.
type pace struct {
	push func(*task) // puts a task back into the queue when its namespace has a seat again
	most int

	mu       sync.Mutex
	free     *sync.Cond
	limit    int
	active   int // requests with a seat
	choosing int // of those, the ones whose task is still being chosen
	lent     int // requests that have lent theirs and are still under way
	good     int // answers in a row that were not refusals
	stale    int // requests under way that were sent before the limit was last cut
	of       map[string]*seatShare

	refused time.Time // last; zero is never
}

// seatShare is what a namespace has.
type seatShare struct {
	active, lent int
	waiting      taskHeap
}

func newPace(most int, push func(*task)) *pace {
	p := &pace{push: push, most: most, limit: most, of: map[string]*seatShare{}}
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
	p.choosing++
	return true
}

// do makes a task's request in the seat that begin has found, and gives the seat back. The request
// says whether the API server was too busy for it. If the namespace has its share already, the task is
// put back into the queue when it has less, the most urgent first.
func (p *pace) do(t *task, request func() (busy bool)) {
	p.mu.Lock()
	own := p.of[t.pod.Namespace]
	if own == nil {
		own = &seatShare{}
		p.of[t.pod.Namespace] = own
	}
	own.active++
	p.choosing--
	if p.roomLocked(own) < 0 {
		heap.Push(&own.waiting, t)
		own.active--
		p.active--
		p.free.Broadcast()
		p.mu.Unlock()
		return
	}
	var over, lent bool // guarded by p.mu, as is
	var slow *time.Timer
	slow = time.AfterFunc(patience, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if over || p.lent == p.most*lentPerSeat || 2*own.lent >= p.most*lentPerSeat {
			return
		}
		if wait := calm - time.Since(p.refused); wait > 0 {
			slow.Reset(wait)
			return
		}
		lent = true
		own.lent++
		own.active--
		p.lent++
		p.active--
		p.wakeLocked()
	})
	p.mu.Unlock()
	busy := request()
	slow.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	over = true
	if lent {
		own.lent--
		p.lent--
	} else {
		own.active--
		p.active--
	}
	p.adapt(busy)
	p.wakeLocked()
	if own.active+own.lent+len(own.waiting) == 0 {
		delete(p.of, t.pod.Namespace)
	}
}

// roomLocked is how many more seats the namespace can take.
func (p *pace) roomLocked(own *seatShare) int {
	left := p.most - (p.active - p.choosing) + own.active
	if own.lent > 0 {
		left /= 2
	} else {
		left -= (left + 7) / 8
	}
	return max(1, left) - own.active
}

// wakeLocked lets those try again that wait for a seat.
func (p *pace) wakeLocked() {
	for _, own := range p.of {
		for range min(p.roomLocked(own), len(own.waiting)) {
			p.push(heap.Pop(&own.waiting).(*task))
		}
	}
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
