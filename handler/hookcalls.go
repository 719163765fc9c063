package handler

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"

	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
)

// hookTry is what this process knows of one hook beyond the record: the call under way and
// what earlier ones have brought. Losing it costs a call. The handler's mutex guards it.
type hookTry struct {
	underWay chan struct{} // closed with the answer of the call under way; nil: none
	next     time.Time     // no call before
	pause    time.Duration // before it, after a failure
	ending   bool          // the calls are to complete the hook, and so is the pause

	limits lifecycle.Limits // zero: not known yet
	since  time.Time        // when they were first asked for
	beat   time.Time        // when the last heartbeat was recorded
	mute   bool             // heartbeats are not allowed
	gone   bool             // the group waits no longer
}

const (
	// Between attempts at the same call, give or take half. A group waits for 30 s at
	// least, and thousands of nodes may be ended at once, so that some are throttled.
	firstHookPause = time.Second
	maxHookPause   = 30 * time.Second
	// deniedHookPause is for a call that somebody has to allow first.
	deniedHookPause = time.Minute

	// limitsPatience is how long a drain waits to know how long the group waits. The
	// shortest timeout of a hook is 30 s.
	limitsPatience = 8 * time.Second

	// hookAfter is how long a hook is tried to be completed beyond the time at which its
	// group waits no longer, as far as is known.
	hookAfter = time.Minute
)

// hook returns what is known of a hook. The caller holds the handler's mutex.
func (k *known) hook(hook interruption.Hook) *hookTry {
	name := hookName{hook.Group, hook.Name, hook.Token}
	if k.hooks[name] == nil {
		if k.hooks == nil {
			k.hooks = map[hookName]*hookTry{}
		}
		k.hooks[name] = &hookTry{}
	}
	return k.hooks[name]
}

// hookName tells hooks apart.
type hookName struct{ group, name, token string }

// readLimits asks how long the group waits. What cannot be known is assumed.
func (h *Handler) readLimits(ctx context.Context, _ string, try *hookTry, _ interruption.Record, hook interruption.Hook) {
	h.mu.Lock()
	if try.since.IsZero() {
		try.since = time.Now()
	}
	h.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, limitsPatience)
	defer cancel()
	limits, err := h.opts.Lifecycle.Hooks.Limits(bounded, hook)
	h.mu.Lock()
	defer h.mu.Unlock()
	try.done(err)
	switch {
	case ctx.Err() != nil:
	case err == nil && limits.Timeout > 0:
		try.limits = limits
	case err == nil, gone(err), errors.Is(err, lifecycle.ErrDenied), time.Since(try.since) >= limitsPatience:
		// Of a hook that is not there any more the group may still wait.
		try.limits, try.next = lifecycle.LimitsOf(h.opts.Lifecycle.Timeout), time.Time{}
	}
	if wait := try.since.Add(limitsPatience); try.limits.Timeout == 0 && try.next.After(wait) {
		try.next = wait
	}
}

// prolong records a heartbeat.
func (h *Handler) prolong(ctx context.Context, node string, try *hookTry, rec interruption.Record, hook interruption.Hook) {
	at := time.Now()
	err := h.opts.Lifecycle.Hooks.Heartbeat(ctx, rec.Instance, hook)
	h.mu.Lock()
	defer h.mu.Unlock()
	try.done(err)
	log := h.opts.Logger.Debug()
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		try.beat = at
		tellHook(log, node, rec, hook).Int("heartbeats", hook.Heartbeats+1).Msg("heartbeat recorded")
	case gone(err):
		try.gone = true
		tellHook(h.opts.Logger.Warn(), node, rec, hook).Err(err).Msg("group waits no longer")
	case errors.Is(err, lifecycle.ErrDenied):
		try.mute = true
	default:
		tellHook(h.opts.Logger.Warn(), node, rec, hook).Err(err).Msg("record heartbeat")
	}
}

// completeHook has the group wait no longer.
func (h *Handler) completeHook(ctx context.Context, node string, try *hookTry, rec interruption.Record, hook interruption.Hook) {
	err := h.opts.Lifecycle.Hooks.Complete(ctx, rec.Instance, hook)
	h.mu.Lock()
	defer h.mu.Unlock()
	try.done(err)
	switch {
	case ctx.Err() != nil && err != nil:
	case err == nil, gone(err):
		try.gone = true
		tellCompleted(h.opts.Logger, node, rec, hook, err)
	case time.Now().After(h.abandoned(rec, hook)):
		try.gone = true
		tellHook(h.opts.Logger.Warn(), node, rec, hook).Err(err).Msg("lifecycle hook left to its timeout")
	case !errors.Is(err, lifecycle.ErrDenied): // the client has told of that
		tellHook(h.opts.Logger.Warn(), node, rec, hook).Err(err).Msg("complete lifecycle hook")
	}
}

// abandoned is when a hook that could not be completed has surely run into its timeout.
func (h *Handler) abandoned(rec interruption.Record, hook interruption.Hook) time.Time {
	until := later(hook.Since, rec.Received).Add(h.opts.Lifecycle.Timeout)
	if hook.Until != nil {
		until = later(until, *hook.Until)
	}
	return until.Add(hookAfter)
}

// end turns to completing the hook, for which no failure of another call is a reason to wait.
func (t *hookTry) end() {
	if !t.ending {
		t.ending, t.pause, t.next = true, 0, time.Time{}
	}
}

// done ends a call, and says when the next may be made.
func (t *hookTry) done(err error) {
	if t.underWay != nil {
		close(t.underWay)
		t.underWay = nil
	}
	switch {
	case err == nil:
		t.pause, t.next = 0, time.Time{}
		return
	case errors.Is(err, lifecycle.ErrDenied):
		t.pause = deniedHookPause
	default:
		t.pause = min(maxHookPause, max(firstHookPause, 2*t.pause))
	}
	t.next = time.Now().Add(time.Duration((0.5 + rand.Float64()) * float64(t.pause)))
}

// tellHook adds which hook it is to the fields of an interruption's story.
func tellHook(e *zerolog.Event, node string, rec interruption.Record, hook interruption.Hook) *zerolog.Event {
	return tell(e, node, rec).Str("group", hook.Group).Str("hook", hook.Name)
}

func tellCompleted(log zerolog.Logger, node string, rec interruption.Record, hook interruption.Hook, err error) {
	e := tellHook(log.Info(), node, rec, hook)
	if err != nil {
		e.Str("reason", err.Error()).Msg("lifecycle hook had ended already")
		return
	}
	e.Int("heartbeats", hook.Heartbeats).Msg("lifecycle hook completed")
}
