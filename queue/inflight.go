package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// Messages in flight are looked at every prolongEvery, and hidden for another
	// hiddenFor when half of it has gone: that leaves two more attempts before
	// another consumer would get them.
	prolongEvery = 5 * time.Second
	prolongAt    = hiddenFor / 2
)

// inFlight holds the messages in work, and until when each is hidden from other consumers.
type inFlight struct {
	mu       sync.Mutex
	messages map[*message]struct{}
}

func newInFlight() *inFlight { return &inFlight{messages: make(map[*message]struct{})} }

func (f *inFlight) add(m *message) {
	if m.handle == "" {
		return // SQS has given no means to hide it
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.messages[m] = struct{}{}
}

// remove lets go of m; nobody else writes hiddenUntil after it.
func (f *inFlight) remove(m *message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.messages, m)
}

// due returns the messages that would be visible again too soon.
func (f *inFlight) due(now time.Time) []*message {
	f.mu.Lock()
	defer f.mu.Unlock()
	var due []*message
	for m := range f.messages {
		if m.hiddenUntil.Sub(now) <= prolongAt {
			due = append(due, m)
		}
	}
	return due
}

// hidden notes that m is hidden until t, unless its work has ended meanwhile.
func (f *inFlight) hidden(m *message, t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, still := f.messages[m]; still {
		m.hiddenUntil = t
	}
}

// keepHidden hides messages in work for longer until ctx is canceled.
// The work itself is bounded by maxWork, and so is this.
func (c *Consumer) keepHidden(ctx context.Context) {
	tick := time.NewTicker(prolongEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var calls errgroup.Group
		calls.SetLimit(maxBatchCalls)
		for some := range slices.Chunk(c.inFlight.due(time.Now()), batchSize) {
			calls.Go(func() error {
				c.prolong(ctx, some)
				return nil
			})
		}
		_ = calls.Wait() // prolong returns no error: what failed is due again
	}
}

func (c *Consumer) prolong(ctx context.Context, messages []*message) {
	entries := make([]batchEntry, len(messages))
	for i, m := range messages {
		entries[i] = batchEntry{handle: m.handle, hideFor: hiddenFor}
	}
	until := time.Now().Add(hiddenFor)
	for i, err := range c.hideBatch(ctx, entries) {
		switch {
		case err == nil:
			c.inFlight.hidden(messages[i], until)
		case final(err):
			// The delivery is not ours any more. The notice is still worth accepting; the
			// message comes back as a duplicate, unless the queue has dropped it.
			c.inFlight.remove(messages[i])
		}
	}
}
