// Package ratelimit bounds what one node can make us do. Its kubelet may write its record as often
// as the API server allows, so each node has a share of its own of the calls, webhooks and Events
// that follow, and those of the others are as fast as without it.
package ratelimit

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
)

// PerNode gives each node a share of something: so many at once, and later one at each interval.
// It is safe for concurrent use. A share that has not been used for long costs no memory.
type PerNode struct {
	every  time.Duration
	burst  int
	atOnce int64

	mu     sync.Mutex
	shares map[string]*share
	prune  int // how many shares there are when those that are unused are dropped
}

type share struct {
	tokens *rate.Limiter
	places *semaphore.Weighted
}

// leastPruned is how many shares are kept without a look at whether they are used.
const leastPruned = 64

// New returns a PerNode. Each node can do something burst times and then once every interval, and
// have atOnce of it under way.
func New(every time.Duration, burst int, atOnce int64) *PerNode {
	return &PerNode{every: every, burst: burst, atOnce: atOnce, shares: map[string]*share{}, prune: leastPruned}
}

// Allow reports whether the node may do it once more now. It does not block, and does not count
// what is under way.
func (p *PerNode) Allow(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ofLocked(node).tokens.Allow()
}

// Do does it as soon as the node may. The error is that of ctx if it ends before.
func (p *PerNode) Do(ctx context.Context, node string, do func()) error {
	p.mu.Lock()
	of := p.ofLocked(node)
	p.mu.Unlock()
	if err := of.places.Acquire(ctx, 1); err != nil {
		return err
	}
	defer of.places.Release(1)
	if err := wait(ctx, of.tokens); err != nil {
		return err
	}
	do()
	return nil
}

// wait is as rate.Limiter's, which fails before its time if the deadline of ctx comes first.
func wait(ctx context.Context, tokens *rate.Limiter) error {
	reserved := tokens.Reserve()
	timer := time.NewTimer(reserved.Delay())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		reserved.Cancel()
		return ctx.Err()
	}
}

func (p *PerNode) ofLocked(node string) *share {
	if of := p.shares[node]; of != nil {
		return of
	}
	if len(p.shares) >= p.prune {
		for name, of := range p.shares {
			if p.unused(of) {
				delete(p.shares, name)
			}
		}
		p.prune = max(leastPruned, 2*len(p.shares))
	}
	of := &share{
		tokens: rate.NewLimiter(rate.Every(p.every), p.burst),
		places: semaphore.NewWeighted(p.atOnce),
	}
	p.shares[node] = of
	return of
}

// unused reports whether a new share would be the same.
func (p *PerNode) unused(of *share) bool {
	if of.tokens.Tokens() < float64(p.burst) || !of.places.TryAcquire(p.atOnce) {
		return false
	}
	of.places.Release(p.atOnce)
	return true
}
