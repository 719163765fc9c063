package asg

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"spot-handler/handler/interruption"
)

const (
	// gather is how long the first of a burst waits for the others, so that they share
	// its calls. A replacement takes a minute to boot; this is nothing to it.
	gather = 150 * time.Millisecond

	// watch is how often the Nodes, which are in memory, are looked through for
	// replacements while some are to come.
	watch = 500 * time.Millisecond

	// longestPause is how long to wait with everything after a call that has failed, at the
	// most but for a half. Others wait too that have to do with another group: they have two
	// minutes in all.
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

// step does all that is to be done now. What fails does not hold up the rest. Nodes
// whose group has just been found are left to the next step, to leave it together.
func (b *Backend) step(ctx context.Context) error {
	select {
	case <-b.full: // all that waits is asked for now
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
	if len(open) == 0 { // who is asked for from now on is replaced by those who join from now on
		clear(b.members)
		clear(b.given)
	}
}

func (b *Backend) over(e *entry) bool {
	node, ok := b.nodes.Get(e.node)
	if !ok {
		return true
	}
	rec, err := interruption.ParseRecord(node.Annotations[interruption.Annotation])
	return err != nil || rec.Instance != e.instance || rec.Phase.Over()
}

// waiting reports whether Nodes are to be looked through again.
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

// in returns the nodes of a stage, those first that need their replacement first.
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

// whole cuts from a list what would make a call that is not full, where there is enough
// for one that is. The rest has its turn a moment later, together with who comes until then.
func (b *Backend) whole(list []*entry, limit int) []*entry {
	rest := len(list) % limit
	if rest == 0 || rest == len(list) {
		return list
	}
	signal(b.wake)
	return list[:len(list)-rest]
}

// change changes nodes with f and tells of them. Those that are not in the stage any
// more, as they were forgotten while they were asked for, stay as they are.
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
