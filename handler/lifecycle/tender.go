package lifecycle

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
	"spot-handler/handler/ratelimit"
)

// Hooks answers the lifecycle hooks of Auto Scaling groups, as [Client] does. Each method makes
// a call or two, bounded in time. Errors wrap ErrGone if the group no longer waits at the hook,
// and ErrDenied if the role has to be changed first; after any other error the same call may
// succeed.
type Hooks interface {
	// Limits says how long the group waits.
	Limits(ctx context.Context, h interruption.Hook) (Limits, error)
	// Heartbeat makes it wait for the hook's timeout from now on.
	Heartbeat(ctx context.Context, instance string, h interruption.Hook) error
	// Complete has it stop waiting for an instance, which is that Node; empty if it is none of this
	// cluster.
	Complete(ctx context.Context, node, instance string, h interruption.Hook) error
}

// TenderOptions say how to answer the hooks in records.
type TenderOptions struct {
	// Hooks is nil if there are no permissions for it, as in imds mode. The hooks in a record
	// are then left to others.
	Hooks Hooks

	// HeartbeatUntil bounds how long heartbeats make a group wait in total while one of its nodes
	// is drained; the hook's own timeout is the least. Each comes at half of that timeout. Zero
	// sends none.
	HeartbeatUntil time.Duration

	// CordonOnly: nodes are not drained, so their hooks are completed as soon as they are
	// cordoned.
	CordonOnly bool

	// Notify receives the name of a node when a call about one of its hooks has been answered.
	Notify func(node string)

	Logger zerolog.Logger
}

// Tender answers the hooks in the records of nodes. Its calls run in the background: no method
// waits for Auto Scaling, except Wait. It is safe for concurrent use, for different nodes.
type Tender struct {
	opts   TenderOptions
	shares *ratelimit.PerNode // of the calls
	calls  sync.WaitGroup

	mu    sync.Mutex
	tries map[string]map[tryKey]*try // by node
}

// A node's share of the calls is ample for all the hooks that a record can have: their timeouts
// are read and they are completed, and each is tried again. Its kubelet may write hooks into its
// record as fast as it likes, and the account has one rate for all its groups.
const (
	nodeBurst  = 16
	nodeEvery  = 2 * time.Second
	nodeAtOnce = 2
)

// NewTender returns a Tender. It makes no call.
func NewTender(opts TenderOptions) *Tender {
	return &Tender{opts: opts, shares: ratelimit.New(nodeEvery, nodeBurst, nodeAtOnce), tries: map[string]map[tryKey]*try{}}
}

// hookNews is how much later than the metadata service's news of the same end the message about
// a hook may come. The message says what we would otherwise have to assume.
const hookNews = 5 * time.Second

// Tended is how far the hooks in a node's record have come.
type Tended struct {
	// Record has what earlier calls have returned. If Changed, it is to be written.
	Record  interruption.Record
	Changed bool
	// Ready is false as long as a drain cannot be planned because nobody knows yet how long the group
	// waits.
	Ready bool
	// Again is when to look again, if Notify does not come first; zero means never.
	Again time.Time

	open bool // a hook is to be answered
}

// Learn says what has become of the hooks in a node's record. It makes no call. Calls about hooks
// that earlier records of the node had are given up.
func (t *Tender) Learn(node string, rec interruption.Record) Tended {
	t.forget(node, func(k tryKey) bool { return !slices.ContainsFunc(rec.Hooks, k.names) })
	next := rec
	next.Hooks = slices.Clone(rec.Hooks)
	var ends time.Time
	changed, open, stopped := false, false, false
	// The metadata service's news is received by the clock of the node, which can be minutes ahead of ours.
	received := interruption.Earlier(rec.Received, time.Now())
	if t.opts.Hooks != nil {
		for i := range next.Hooks {
			changed = t.learn(node, &next.Hooks[i], received) || changed
			stopped = stopped || next.Hooks[i].Done && !rec.Hooks[i].Done
			if !next.Hooks[i].Done {
				open, ends = true, interruption.Earlier(ends, next.Hooks[i].Until)
			}
		}
	}
	unplanned := rec.Kind == interruption.InstanceTerminating && rec.Deadline.IsZero() && !rec.Phase.Over()
	if unplanned && !open {
		ahead := rec.Received.After(received) // it does not say when the wait for more news is over
		if news := received.Add(hookNews); t.opts.Hooks != nil && !ahead && time.Now().Before(news) {
			return Tended{Record: rec, Again: news}
		}
		ends = received.Add(interruption.UnknownHookTimeout)
	}
	if stopped && !open && !rec.Phase.Over() { // the hooks timed out or were completed: the instance ends now
		ends = time.Now()
	}
	if !ends.IsZero() {
		next = next.Tighten(interruption.InstanceTerminating, ends)
	}
	if !changed && next.Deadline.Equal(rec.Deadline) {
		next = rec
	} else {
		changed = true
	}
	return Tended{Record: next, Changed: changed, Ready: !open || !unplanned || !next.Deadline.IsZero(), open: open}
}

// Answer starts the calls that are due about the hooks, and returns when to look again.
func (t *Tender) Answer(ctx context.Context, node string, tended Tended) time.Time {
	again := tended.Again
	if tended.open {
		for _, hook := range tended.Record.Hooks {
			again = interruption.Earlier(again, t.answer(ctx, node, tended.Record, hook))
		}
	}
	return again
}

// learn writes into a hook what the calls about it have returned, and reports whether any of it
// is new.
func (t *Tender) learn(node string, hook *interruption.Hook, received time.Time) (changed bool) {
	if hook.Done {
		return false
	}
	if hook.Since.IsZero() {
		hook.Since = received
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	try := t.tryOf(node, *hook)
	if try.gone {
		hook.Done = true
		return true
	}
	if hook.Beat.Before(try.beat) {
		hook.Beat, hook.Heartbeats = try.beat.UTC(), hook.Heartbeats+1
		changed = true
	}
	if try.limits.Timeout == 0 {
		return changed
	}
	until := t.waitsUntil(*hook, try)
	if hook.Until.IsZero() || until.Before(hook.Until) {
		hook.Until = until.UTC()
		changed = true
	}
	return changed
}

// waitsUntil is when the group stops waiting at a hook, counting the heartbeats still to come.
func (t *Tender) waitsUntil(hook interruption.Hook, try *try) time.Time {
	switch {
	case t.opts.HeartbeatUntil == 0:
		return hook.Since.Add(try.limits.Timeout)
	case try.mute: // counting the heartbeats so far
		return interruption.Later(hook.Since, hook.Beat).Add(try.limits.Timeout)
	}
	return hook.Since.Add(max(try.limits.Timeout, min(try.limits.Global, t.opts.HeartbeatUntil)))
}

// answer starts the call that is due about a hook, and returns when to look again.
//
//	limits ─► heartbeat, heartbeat, ... while the node is drained ─► complete
func (t *Tender) answer(ctx context.Context, node string, rec interruption.Record, hook interruption.Hook) time.Time {
	if hook.Done {
		return time.Time{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	try := t.tryOf(node, hook)
	c := call{node: node, rec: rec, hook: hook, try: try}
	var due func(context.Context, call)
	switch {
	case rec.Phase.Over(), t.opts.CordonOnly && rec.Phase != interruption.Waiting:
		t.end(ctx, c)
		return time.Time{}
	case try.busy != nil, try.gone:
		return time.Time{} // its answer makes us look again
	case try.limits.Timeout == 0 && (hook.Until.IsZero() || t.opts.HeartbeatUntil > 0):
		due = t.readLimits
	case t.opts.HeartbeatUntil == 0 || try.mute:
		return time.Time{}
	default:
		beat := nextBeat(hook, try.limits.Timeout/2)
		if end := rec.DrainEnd(); !end.IsZero() && !beat.Before(end) || !hook.Until.IsZero() && !beat.Before(hook.Until) {
			return time.Time{} // the drain will have ended
		}
		if at := interruption.Later(beat, try.failed.Add(try.limits.Timeout/beatTries)); time.Now().Before(at) {
			return at
		}
		due = t.prolong
	}
	ctx, try.busy = context.WithCancel(ctx)
	t.calls.Go(func() {
		due(ctx, c)
		t.opts.Notify(node)
	})
	return time.Time{}
}

// end turns to completing a hook, unless that has begun. It waits for no other call about it. The
// caller holds the mutex.
func (t *Tender) end(ctx context.Context, c call) {
	if c.try.gone || c.try.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	c.try.stop = stop
	t.calls.Go(func() {
		defer stop()
		t.complete(ctx, c)
		t.opts.Notify(c.node)
	})
}

// nextBeat is when the next heartbeat is due, a whole number of intervals after the beginning.
// Heartbeats that nobody was there to record are not made up for: one prolongs the wait as much
// as many.
func nextBeat(hook interruption.Hook, interval time.Duration) time.Time {
	passed := max(0, int(hook.Beat.Sub(hook.Since)/interval)) // none without a heartbeat
	return hook.Since.Add(time.Duration(passed+1) * interval)
}

// Orphaned completes the hooks of a node that is gone together with its record. It does not
// block.
func (t *Tender) Orphaned(ctx context.Context, node string, rec interruption.Record) {
	if t.opts.Hooks == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, hook := range rec.Hooks {
		if !hook.Done {
			t.end(ctx, call{node: node, rec: rec, hook: hook, try: t.tryOf(node, hook)})
		}
	}
	delete(t.tries, node) // so Forget does not stop them
}

// Forget drops what is known of a node's hooks beyond its record. Those that have not been completed
// by now are left.
func (t *Tender) Forget(node string) { t.forget(node, func(tryKey) bool { return true }) }

// forget does so for some of a node's hooks.
func (t *Tender) forget(node string, which func(tryKey) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, try := range t.tries[node] {
		if which(key) {
			try.giveUp()
			delete(t.tries[node], key)
		}
	}
	if len(t.tries[node]) == 0 {
		delete(t.tries, node)
	}
}

// Wait returns when no call is under way any more. Nobody must be calling any other method by then.
func (t *Tender) Wait() { t.calls.Wait() }
