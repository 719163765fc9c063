package awsfault

import (
	"context"
	"sync"
	"time"
)

// A Batcher gathers what many want at the same time into calls about several. It has no goroutine
// of its own: the item that fills a batch, or the timer of the first, makes the call.
type Batcher[In, Out any] struct {
	// Size is how many items one call takes, and Linger how long an incomplete batch waits for more.
	Size   int
	Linger time.Duration
	// Call makes one call, bounded in time, and returns what came of each item. Its context is that
	// of the first item, so those of all should end at the same time.
	Call func(ctx context.Context, items []In) []Out

	mu   sync.Mutex
	next *batch[In, Out]
}

type batch[In, Out any] struct {
	ctx     context.Context
	items   []In
	timer   *time.Timer
	results []Out
	done    chan struct{}
}

// Do has a call made for the item, and returns what came of it.
func (b *Batcher[In, Out]) Do(ctx context.Context, item In) Out {
	b.mu.Lock()
	if b.next == nil {
		n := &batch[In, Out]{ctx: ctx, done: make(chan struct{})}
		n.timer = time.AfterFunc(b.Linger, func() { b.flush(n) })
		b.next = n
	}
	mine, i := b.next, len(b.next.items)
	mine.items = append(mine.items, item)
	full := len(mine.items) == b.Size
	if full {
		b.next = nil
	}
	b.mu.Unlock()

	if full && mine.timer.Stop() {
		b.run(mine)
	}
	<-mine.done // the timeout of the call sees to that
	return mine.results[i]
}

// flush makes the call for the batch as it is, when its timer fires.
func (b *Batcher[In, Out]) flush(n *batch[In, Out]) {
	b.mu.Lock()
	if b.next == n {
		b.next = nil
	}
	b.mu.Unlock()
	b.run(n)
}

func (b *Batcher[In, Out]) run(n *batch[In, Out]) {
	defer close(n.done)
	n.results = b.Call(n.ctx, n.items)
}
