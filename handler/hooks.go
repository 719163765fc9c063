package handler

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
)

// Hooks answers the lifecycle hooks of Auto Scaling groups. Each method makes a call or
// two, bounded in time. Errors wrap lifecycle.ErrGone where the group does not wait at the
// hook any more, and lifecycle.ErrDenied where the role has to be changed first; after any
// other the same call may succeed.
type Hooks interface {
	// Limits says how long the group waits.
	Limits(ctx context.Context, h interruption.Hook) (lifecycle.Limits, error)
	// Heartbeat has it wait for the hook's timeout from now on.
	Heartbeat(ctx context.Context, instance string, h interruption.Hook) error
	// Complete has it wait no longer.
	Complete(ctx context.Context, instance string, h interruption.Hook) error
	// CompleteUnknown is Complete for an instance that is no Node of this cluster.
	CompleteUnknown(ctx context.Context, instance string, h interruption.Hook) error
}

// HookOptions say how lifecycle hooks are answered.
type HookOptions struct {
	// Hooks is nil where there are no rights for it, as in imds mode. The hooks in a record
	// are left to others then.
	Hooks Hooks

	// Timeout is taken for a hook's own where that cannot be known.
	Timeout time.Duration

	// Heartbeat is how often a group is asked to wait longer while a node of it is drained;
	// zero is never.
	Heartbeat time.Duration
	// Until is for how long in all, at the most, and at least for the hook's own timeout.
	Until time.Duration
}

// hookNews is how long the message about a hook may come after the metadata service has
// told of the same end. It says what otherwise has to be assumed.
const hookNews = 5 * time.Second

// tend brings the hooks in a record on: it has the calls made that are due, and writes
// down what has come of earlier ones. No call is waited for: the node is reconciled again
// when its answer is there. ready is false as long as a drain cannot be planned, since it
// is not known yet how long the group waits; again is when to look again if nothing
// happens before.
func (h *Handler) tend(ctx context.Context, node **corev1.Node, k *known, rec *interruption.Record) (ready bool, again time.Time, err error) {
	hooks := slices.Clone(rec.Hooks)
	var ends time.Time
	changed := false
	if h.opts.Lifecycle.Hooks != nil {
		for i := range hooks {
			changed = h.learn(k, &hooks[i], rec.Received) || changed
			if until := hooks[i].Until; until != nil && !hooks[i].Done {
				ends = earlier(ends, *until)
			}
		}
	}
	open := h.opts.Lifecycle.Hooks != nil && slices.ContainsFunc(hooks, func(h interruption.Hook) bool { return !h.Done })
	waiting := rec.Kind == interruption.InstanceTerminating && rec.Deadline == nil && !rec.Phase.Over()
	if waiting && !open {
		if news := rec.Received.Add(hookNews); h.opts.Lifecycle.Hooks != nil && time.Now().Before(news) {
			return false, news, nil
		}
		ends = rec.Received.Add(h.opts.Lifecycle.Timeout)
	}
	next := *rec
	next.Hooks = hooks
	if !ends.IsZero() {
		next = next.Tighten(interruption.InstanceTerminating, ends)
	}
	if changed || !sameTime(next.Deadline, rec.Deadline) {
		if err := h.write(ctx, node, k, next); err != nil {
			return false, time.Time{}, err
		}
		*rec = next
	}
	if !open {
		return true, time.Time{}, nil
	}
	for _, hook := range hooks {
		again = earlier(again, h.answer(ctx, (*node).Name, k, *rec, hook))
	}
	return !waiting || rec.Deadline != nil, again, nil
}

// learn writes into a hook what the calls about it have brought, and reports whether that
// is anything new.
func (h *Handler) learn(k *known, hook *interruption.Hook, received time.Time) (changed bool) {
	if hook.Done {
		return false
	}
	if hook.Since.IsZero() {
		hook.Since = received
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	try := k.hook(*hook)
	if try.gone {
		hook.Done = true
		return true
	}
	if !try.beat.IsZero() && (hook.Beat == nil || hook.Beat.Before(try.beat)) {
		hook.Beat, hook.Heartbeats = pointerTo(try.beat), hook.Heartbeats+1
		changed = true
	}
	if try.limits.Timeout == 0 {
		return changed
	}
	until := h.waitsUntil(*hook, try)
	if hook.Until == nil || until.Before(*hook.Until) {
		hook.Until = pointerTo(until)
		changed = true
	}
	return changed
}

// waitsUntil is when the group waits no longer at a hook, with the heartbeats that it will
// have.
func (h *Handler) waitsUntil(hook interruption.Hook, try *hookTry) time.Time {
	o := h.opts.Lifecycle
	switch {
	case o.Heartbeat == 0:
		return hook.Since.Add(try.limits.Timeout)
	case try.mute: // with those that it has had
		last := hook.Since
		if hook.Beat != nil {
			last = *hook.Beat
		}
		return last.Add(try.limits.Timeout)
	}
	return hook.Since.Add(max(try.limits.Timeout, min(try.limits.Global, o.Until)))
}

// answer has the call made that is due about a hook, and returns when to look again.
//
//	limits ─► heartbeat, heartbeat, ... while the node is drained ─► complete
func (h *Handler) answer(ctx context.Context, node string, k *known, rec interruption.Record, hook interruption.Hook) time.Time {
	if hook.Done {
		return time.Time{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	try := k.hook(hook)
	if try.underWay != nil || try.gone {
		return time.Time{} // its answer comes by itself
	}
	var call func(context.Context, string, *hookTry, interruption.Record, interruption.Hook)
	over := rec.Phase.Over() || h.opts.CordonOnly && rec.Phase != interruption.Waiting
	if over {
		try.end()
	}
	at := try.next
	switch {
	case over:
		call = h.completeHook
	case try.limits.Timeout == 0 && (hook.Until == nil || h.opts.Lifecycle.Heartbeat > 0):
		call = h.readLimits
	case h.opts.Lifecycle.Heartbeat == 0 || try.mute:
		return time.Time{}
	default:
		beat := nextBeat(hook, min(h.opts.Lifecycle.Heartbeat, try.limits.Timeout/2))
		if end := endOf(rec); !end.IsZero() && !beat.Before(end) || hook.Until != nil && !beat.Before(*hook.Until) {
			return time.Time{} // the drain will have ended
		}
		call = h.prolong
		at = later(at, beat)
	}
	if time.Now().Before(at) {
		return at
	}
	try.underWay = make(chan struct{})
	h.calls.Go(func() {
		call(ctx, node, try, rec, hook)
		h.Enqueue(node)
	})
	return time.Time{}
}

// nextBeat is when the next heartbeat is due: they are whole intervals after the beginning.
// Those that nobody was there to record are not made up for, as one prolongs the wait as
// much as many.
func nextBeat(hook interruption.Hook, interval time.Duration) time.Time {
	passed := 0
	if hook.Beat != nil {
		passed = max(0, int(hook.Beat.Sub(hook.Since)/interval))
	}
	return hook.Since.Add(time.Duration(passed+1) * interval)
}

// orphaned completes the hooks of a node that is gone, and its record with it. What was
// under way about one is waited for: it may have completed it.
func (h *Handler) orphaned(ctx context.Context, k *known) {
	if h.opts.Lifecycle.Hooks == nil {
		return
	}
	rec := k.rec
	for _, hook := range rec.Hooks {
		if hook.Done {
			continue
		}
		h.calls.Go(func() {
			for ctx.Err() == nil {
				h.mu.Lock()
				try := k.hook(hook)
				if try.underWay == nil {
					try.end()
				}
				gone, underWay, wait := try.gone, try.underWay, time.Until(try.next)
				h.mu.Unlock()
				switch {
				case gone:
					return
				case underWay != nil:
					select {
					case <-ctx.Done():
					case <-underWay:
					}
				case wait > 0:
					select {
					case <-ctx.Done():
					case <-time.After(wait):
					}
				default:
					h.completeHook(ctx, "", try, rec, hook)
				}
			}
		})
	}
}

func sameTime(a, b *time.Time) bool {
	return a == b || a != nil && b != nil && a.Equal(*b)
}

func pointerTo(t time.Time) *time.Time {
	t = t.UTC()
	return &t
}

// gone reports whether the group does not wait any more, as the error says.
func gone(err error) bool { return errors.Is(err, lifecycle.ErrGone) }
