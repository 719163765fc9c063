package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// linger is how long an incomplete batch waits for more. Nobody waits for a deletion. In a burst
	// messages are settled about 4 ms apart: if a batch waited no longer, most would be of one or two.
	linger = 100 * time.Millisecond

	// maxBatchCalls is how many calls of one kind are open at once: enough for 1,000
	// deletions in a second at 50 ms each.
	maxBatchCalls = 8
)

// A batchEntry is one message in a batch call.
type batchEntry struct {
	handle  string
	hideFor time.Duration // of a change of visibility
}

// A batcher gathers messages that are settled at the same time into calls about several. It has no
// goroutine of its own: the entry that fills a batch, or the timer of the first, makes the call.
type batcher struct {
	// call makes one call, bounded in time, and returns what came of each entry. Its context is that
	// of the first entry, so those of all should end at the same time.
	call  func(ctx context.Context, entries []batchEntry) []error
	slots *semaphore.Weighted

	mu   sync.Mutex
	next *batch
}

type batch struct {
	ctx     context.Context
	entries []batchEntry
	timer   *time.Timer
	results []error
	done    chan struct{}
}

// newBatcher makes batches of a call that returns a result for each entry.
func newBatcher(call func(context.Context, []batchEntry) []error) *batcher {
	return &batcher{call: call, slots: semaphore.NewWeighted(maxBatchCalls)}
}

// do has a call made for the entry, and returns what came of it.
func (b *batcher) do(ctx context.Context, e batchEntry) error {
	b.mu.Lock()
	if b.next == nil {
		n := &batch{ctx: ctx, done: make(chan struct{})}
		n.timer = time.AfterFunc(linger, func() { b.flush(n) })
		b.next = n
	}
	mine, i := b.next, len(b.next.entries)
	mine.entries = append(mine.entries, e)
	full := len(mine.entries) == batchSize
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
func (b *batcher) flush(n *batch) {
	b.mu.Lock()
	if b.next == n {
		b.next = nil
	}
	b.mu.Unlock()
	b.run(n)
}

func (b *batcher) run(n *batch) {
	defer close(n.done)
	if err := b.slots.Acquire(n.ctx, 1); err != nil {
		n.results = slices.Repeat([]error{err}, len(n.entries))
		return
	}
	defer b.slots.Release(1)
	n.results = b.call(n.ctx, n.entries)
}
