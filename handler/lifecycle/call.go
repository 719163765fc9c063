package lifecycle

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
)

// call is a call about a hook: what it is about, and what is known of earlier ones.
type call struct {
	node string
	rec  interruption.Record
	hook interruption.Hook
	try  *try
}

// try is what this process knows of one hook beyond the record: the call under way and what
// earlier ones have returned. Losing it costs a call. The Tender's mutex guards it.
type try struct {
	underWay chan struct{} // closed with the answer of the call under way; nil: none
	next     time.Time     // no call before then
	pause    time.Duration // before it, after a failure
	ending   bool          // the calls are to complete the hook, and so is the pause

	limits Limits    // zero: not known yet
	since  time.Time // when they were first asked for
	beat   time.Time // when the last heartbeat was recorded
	mute   bool      // heartbeats are not allowed
	gone   bool      // the group no longer waits
}

const (
	// The pause between attempts at the same call, give or take half. A group waits for at
	// least 30 s, and thousands of nodes may end at once, so some calls are throttled.
	firstPause = time.Second
	maxPause   = 30 * time.Second
	// deniedPause is for a call that somebody has to allow first.
	deniedPause = time.Minute

	// limitsPatience is how long a drain waits to learn how long the group waits. A hook's
	// shortest timeout is 30 s.
	limitsPatience = 8 * time.Second

	// completeFor is how long we keep trying to complete a hook after the time at which, as far
	// as we know, its group stops waiting.
	completeFor = time.Minute
)

// tries holds those of one node.
type tries map[hookName]*try

// hookName identifies a hook.
type hookName struct{ group, name, token string }

// of returns what is known of a node's hooks. The caller holds the mutex.
func (t *Tender) of(node string) tries {
	if t.tries[node] == nil {
		t.tries[node] = tries{}
	}
	return t.tries[node]
}

// get returns what is known of a hook. The caller holds the Tender's mutex.
func (t tries) get(hook interruption.Hook) *try {
	name := hookName{hook.Group, hook.Name, hook.Token}
	if t[name] == nil {
		t[name] = &try{}
	}
	return t[name]
}

// readLimits asks how long the group waits. It assumes what it cannot learn.
func (t *Tender) readLimits(ctx context.Context, c call) {
	t.mu.Lock()
	if c.try.since.IsZero() {
		c.try.since = time.Now()
	}
	t.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, limitsPatience)
	defer cancel()
	limits, err := t.opts.Hooks.Limits(bounded, c.hook)
	t.mu.Lock()
	defer t.mu.Unlock()
	c.try.done(err)
	switch {
	case ctx.Err() != nil:
	case err == nil && limits.Timeout > 0:
		c.try.limits = limits
	case err == nil, errors.Is(err, ErrGone), errors.Is(err, ErrDenied), time.Since(c.try.since) >= limitsPatience:
		// The group may still wait at a hook that no longer exists.
		c.try.limits, c.try.next = LimitsOf(interruption.UnknownHookTimeout), time.Time{}
	}
	if wait := c.try.since.Add(limitsPatience); c.try.limits.Timeout == 0 && c.try.next.After(wait) {
		c.try.next = wait
	}
}

// prolong records a heartbeat.
func (t *Tender) prolong(ctx context.Context, c call) {
	at := time.Now()
	err := t.opts.Hooks.Heartbeat(ctx, c.rec.Instance, c.hook)
	t.mu.Lock()
	defer t.mu.Unlock()
	c.try.done(err)
	switch {
	case ctx.Err() != nil:
	case err == nil:
		c.try.beat = at
		c.about(t.opts.Logger.Debug()).Int("heartbeats", c.hook.Heartbeats+1).Msg("heartbeat recorded")
	case errors.Is(err, ErrGone):
		c.try.gone = true
		c.about(t.opts.Logger.Warn()).Err(err).Msg("group waits no longer")
	case errors.Is(err, ErrDenied):
		c.try.mute = true
	default:
		c.about(t.opts.Logger.Warn()).Err(err).Msg("record heartbeat")
	}
}

// complete has the group stop waiting.
func (t *Tender) complete(ctx context.Context, c call) {
	err := t.opts.Hooks.Complete(ctx, c.rec.Instance, c.hook)
	t.mu.Lock()
	defer t.mu.Unlock()
	c.try.done(err)
	switch {
	case ctx.Err() != nil && err != nil:
	case err == nil, errors.Is(err, ErrGone):
		c.try.gone = true
		logCompleted(t.opts.Logger, c.node, c.rec, c.hook, err)
	case time.Now().After(t.abandoned(c.rec, c.hook)):
		c.try.gone = true
		c.about(t.opts.Logger.Warn()).Err(err).Msg("lifecycle hook left to its timeout")
	case !errors.Is(err, ErrDenied): // the client has logged that
		c.about(t.opts.Logger.Warn()).Err(err).Msg("complete lifecycle hook")
	}
}

// abandoned is when a hook that could not be completed has certainly timed out.
func (t *Tender) abandoned(rec interruption.Record, hook interruption.Hook) time.Time {
	since := interruption.Later(hook.Since, rec.Received)
	until := interruption.Later(since.Add(interruption.UnknownHookTimeout), hook.Until)
	return until.Add(completeFor)
}

// end turns to completing the hook. A failure of another call is no reason to delay that.
func (t *try) end() {
	if !t.ending {
		t.ending, t.pause, t.next = true, 0, time.Time{}
	}
}

// done ends a call and says when the next is allowed.
func (t *try) done(err error) {
	if t.underWay != nil {
		close(t.underWay)
		t.underWay = nil
	}
	switch {
	case err == nil:
		t.pause, t.next = 0, time.Time{}
		return
	case errors.Is(err, ErrDenied):
		t.pause = deniedPause
	default:
		t.pause = min(maxPause, max(firstPause, 2*t.pause))
	}
	t.next = time.Now().Add(time.Duration((0.5 + rand.Float64()) * float64(t.pause)))
}

func (c call) about(e *zerolog.Event) *zerolog.Event { return about(e, c.node, c.rec, c.hook) }

// about adds the hook to the fields of an interruption.
func about(e *zerolog.Event, node string, rec interruption.Record, hook interruption.Hook) *zerolog.Event {
	return e.Str("node", node).EmbedObject(rec).Str("group", hook.Group).Str("hook", hook.Name)
}

func logCompleted(log zerolog.Logger, node string, rec interruption.Record, hook interruption.Hook, err error) {
	e := about(log.Info(), node, rec, hook)
	if err != nil {
		e.Str("reason", err.Error()).Msg("lifecycle hook had ended already")
		return
	}
	e.Int("heartbeats", hook.Heartbeats).Msg("lifecycle hook completed")
}
