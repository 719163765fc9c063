package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// Messages in work are looked at every keepEvery, and hidden for another
	// hiddenFor when half of it has gone: that leaves two more attempts before
	// another consumer would get them.
	keepEvery   = 5 * time.Second
	keepAtLeast = hiddenFor / 2
)

// A keeper knows the messages in work, and until when each is hidden from other
// consumers.
type keeper struct {
	mu       sync.Mutex
	messages map[*message]struct{}
}

func newKeeper() *keeper { return &keeper{messages: make(map[*message]struct{})} }

func (k *keeper) add(m *message) {
	if m.handle == "" {
		return // SQS has given no means to keep it
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.messages[m] = struct{}{}
}

// remove ends the keeping of m; nobody else writes hiddenUntil after it.
func (k *keeper) remove(m *message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.messages, m)
}

// due returns the messages that would be visible again too soon.
func (k *keeper) due(now time.Time) []*message {
	k.mu.Lock()
	defer k.mu.Unlock()
	var due []*message
	for m := range k.messages {
		if m.hiddenUntil.Sub(now) <= keepAtLeast {
			due = append(due, m)
		}
	}
	return due
}

// prolonged notes that m is hidden until t, unless its work has ended meanwhile.
func (k *keeper) prolonged(m *message, t time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, kept := k.messages[m]; kept {
		m.hiddenUntil = t
	}
}

// keepHidden prolongs the invisibility of messages in work until ctx is canceled.
// The work itself is bounded by maxWork, and so is this.
func (c *Consumer) keepHidden(ctx context.Context) {
	tick := time.NewTicker(keepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var calls errgroup.Group
		calls.SetLimit(maxBatchCalls)
		for some := range slices.Chunk(c.keeper.due(time.Now()), batchSize) {
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
			c.keeper.prolonged(messages[i], until)
		case final(err):
			// The delivery is not ours any more. The notice is still worth accepting; the
			// message comes back as a duplicate, unless the queue has dropped it.
			c.keeper.remove(messages[i])
		}
	}
}
