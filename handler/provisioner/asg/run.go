package asg

import (
	"context"
	"errors"
	"time"

	"spot-handler/handler/nodes"

	"github.com/cenkalti/backoff/v5"
)

const (
	// gather is how long the first of a burst waits for the others, to share its calls. That
	// is nothing to the minute in which a replacement boots.
	gather = 150 * time.Millisecond

	// watch is how often the Nodes, which are in memory, are searched for replacements while
	// any are expected.
	watch = 500 * time.Millisecond

	// longestPause is the longest wait after a failed call, give or take half. The nodes of
	// other groups wait too, and they have two minutes in all.
	longestPause = 2 * time.Second
)

// Run asks Auto Scaling for all nodes together until ctx is done, and returns nil then.
// While no node is waited for, it is idle. It may be called once.
func (b *Backend) Run(ctx context.Context) error {
	defer b.hangUp()
	again := &backoff.ExponentialBackOff{
		InitialInterval: 200 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: longestPause,
	}
	again.Reset()
	timer := time.NewTimer(watch)
	timer.Stop() // nobody is waited for yet
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-b.wake:
			if !b.collect(ctx) {
				return nil
			}
		}
		err := b.step(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			wait := again.NextBackOff()
			b.log.Warn().Err(err).Float64("retry_seconds", wait.Seconds()).Msg("ask Auto Scaling")
			if !pause(ctx, wait) {
				return nil
			}
			signal(b.wake)
			continue
		}
		again.Reset()
		if b.waiting() {
			timer.Reset(watch)
		}
	}
}

// collect waits until there is enough for a whole call, or long enough.
func (b *Backend) collect(ctx context.Context) bool {
	timer := time.NewTimer(gather)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-b.full:
	case <-timer.C:
	}
	return true
}

func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// step does what can be done now. What fails does not hold up the rest. Nodes whose group
// has just been found wait for the next step, to leave it together.
func (b *Backend) step(ctx context.Context) error {
	select {
	case <-b.full: // this step asks for all that waits
	default:
	}
	b.prune()
	return errors.Join(b.leave(ctx), b.look(ctx), b.match(ctx), b.terminate(ctx))
}

// prune forgets nodes whose interruption is over.
func (b *Backend) prune() {
	b.mu.Lock()
	defer b.mu.Unlock()
	open := map[string]bool{}
	for name, e := range b.entries {
		if b.over(e) {
			delete(b.entries, name)
			continue
		}
		if e.stage != ready && e.stage != refused {
			open[e.group] = true
		}
	}
	for group := range b.baselines {
		if !open[group] {
			delete(b.baselines, group)
		}
	}
	if len(open) == 0 { // later nodes are replaced by Nodes that join later
		clear(b.members)
		clear(b.given)
	}
}

func (b *Backend) over(e *entry) bool {
	node, ok := b.nodes.Get(e.node)
	if !ok {
		return true
	}
	rec, has, err := nodes.Record(node)
	return !has || err != nil || rec.Instance != e.instance || rec.Phase.Over()
}

// waiting reports whether to search the Nodes again.
func (b *Backend) waiting() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		if e.stage == detached || e.stage == found {
			return true
		}
	}
	return false
}

// in returns the nodes of a stage, most urgent first.
func (b *Backend) in(s stage) []*entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []*entry
	for _, e := range b.entries {
		if e.stage == s {
			list = append(list, e)
		}
	}
	return sorted(list)
}

// whole cuts a list to full calls, if it is enough for one. The rest has its turn a moment
// later, together with what comes until then.
func (b *Backend) whole(list []*entry, limit int) []*entry {
	rest := len(list) % limit
	if rest == 0 || rest == len(list) {
		return list
	}
	signal(b.wake)
	return list[:len(list)-rest]
}

// change changes nodes with f and notifies of them. A node that is no longer in the stage,
// as it was forgotten meanwhile, stays as it is.
func (b *Backend) change(list []*entry, s stage, f func(*entry)) {
	var names []string
	b.mu.Lock()
	for _, e := range list {
		if b.entries[e.node] == e && e.stage == s {
			f(e)
			names = append(names, e.node)
		}
	}
	b.mu.Unlock()
	for _, name := range names {
		b.notify(name)
	}
}
