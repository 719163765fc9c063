package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

// call is a call about a hook: what it is about, and what is known of earlier ones.
type call struct {
	node string
	rec  interruption.Record
	hook interruption.Hook
	try  *try
}

// try is what this process knows of one hook beyond the record. Losing it costs a call. The
// Tender's mutex guards it.
type try struct {
	busy context.CancelFunc // of reading its limits or of a heartbeat; nil if neither is under way
	stop context.CancelFunc // of completing it; nil before that has begun

	limits Limits    // zero: not known yet
	beat   time.Time // when the last heartbeat was recorded
	failed time.Time // when one last was not
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

	// beatTries is how often a heartbeat can be tried in the hook's timeout, of which half is left
	// when it is due.
	beatTries = 10

	// completeFor is how long we keep trying to complete a hook after the time at which, as far
	// as we know, its group stops waiting.
	completeFor = time.Minute
)

// tryKey identifies a hook of a node.
type tryKey struct{ group, name, token string }

func keyOf(hook interruption.Hook) tryKey { return tryKey{hook.Group, hook.Name, hook.Token} }

// names reports whether that is the hook.
func (k tryKey) names(hook interruption.Hook) bool { return k == keyOf(hook) }

// tryOf returns what is known of a node's hook. The caller holds the mutex.
func (t *Tender) tryOf(node string, hook interruption.Hook) *try {
	if t.tries[node] == nil {
		t.tries[node] = map[tryKey]*try{}
	}
	key := keyOf(hook)
	if t.tries[node][key] == nil {
		t.tries[node][key] = &try{}
	}
	return t.tries[node][key]
}

// giveUp ends the calls that are under way. The caller holds the mutex.
func (t *try) giveUp() {
	for _, stop := range []context.CancelFunc{t.busy, t.stop} {
		if stop != nil {
			stop()
		}
	}
}

// called notes that reading its limits, or a heartbeat, is over. The caller holds the mutex.
func (t *try) called() {
	t.busy()
	t.busy = nil
}

// share makes a call when the node may have one.
func (t *Tender) share(ctx context.Context, node string, call func() error) error {
	var err error
	if waited := t.shares.Do(ctx, node, func() { err = call() }); waited != nil {
		return waited
	}
	return err
}

// pauses are those between attempts at the same call.
func pauses() *backoff.ExponentialBackOff { return awsfault.Pauses(firstPause, maxPause, 0.5) }

// again makes a call until it succeeds, or until patience or ctx ends. After ErrGone there is no
// other attempt, and none soon after ErrDenied.
func again[T any](ctx context.Context, patience time.Duration, do func() (T, error)) (T, error) {
	return backoff.Retry(ctx, func() (T, error) {
		got, err := do()
		switch {
		case errors.Is(err, ErrGone):
			err = backoff.Permanent(err)
		case errors.Is(err, ErrDenied):
			err = fmt.Errorf("%w: %w", err, &backoff.RetryAfterError{Duration: deniedPause})
		}
		return got, err
	}, backoff.WithBackOff(pauses()), backoff.WithMaxElapsedTime(max(time.Nanosecond, patience)))
}

// readLimits asks how long the group waits. It assumes what it cannot learn: the group may still
// wait at a hook that no longer exists.
func (t *Tender) readLimits(ctx context.Context, c call) {
	bounded, cancel := context.WithTimeout(ctx, limitsPatience)
	defer cancel()
	limits, err := again(bounded, limitsPatience, func() (limits Limits, err error) {
		err = t.share(bounded, c.node, func() (err error) {
			limits, err = t.opts.Hooks.Limits(bounded, c.hook)
			return err
		})
		return limits, err
	})
	if err != nil || limits.Timeout <= 0 {
		limits = LimitsOf(interruption.UnknownHookTimeout)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() == nil {
		c.try.limits = limits
	}
	c.try.called()
}

// prolong records a heartbeat.
func (t *Tender) prolong(ctx context.Context, c call) {
	var at time.Time
	err := t.share(ctx, c.node, func() error {
		at = time.Now()
		return t.opts.Hooks.Heartbeat(ctx, c.rec.Instance, c.hook)
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	defer c.try.called()
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
		c.try.failed = at
		c.about(t.opts.Logger.Warn()).Err(err).Msg("record heartbeat")
	}
}

// complete has the group stop waiting, in as many attempts as it takes, unless ctx ends before.
func (t *Tender) complete(ctx context.Context, c call) {
	_, err := again(ctx, time.Until(c.abandoned()), func() (struct{}, error) {
		err := t.share(ctx, c.node, func() error { return t.opts.Hooks.Complete(ctx, c.node, c.rec.Instance, c.hook) })
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrDenied) { // the client has logged that one
			c.about(t.opts.Logger.Warn()).Err(err).Msg("complete lifecycle hook")
		}
		return struct{}{}, err
	})
	switch {
	case err == nil, errors.Is(err, ErrGone):
		c.completed(t.opts.Logger, err)
	case ctx.Err() != nil:
		return
	default:
		c.about(t.opts.Logger.Warn()).Err(err).Msg("lifecycle hook left to its timeout")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c.try.gone = true
}

// abandoned is when a hook that could not be completed has certainly timed out. The record may say
// that the wait has yet to begin.
func (c call) abandoned() time.Time {
	since := interruption.Later(c.hook.Since, c.rec.Received)
	until := interruption.Later(since.Add(interruption.UnknownHookTimeout), c.hook.Until)
	return interruption.Earlier(until, time.Now().Add(interruption.LongestWait)).Add(completeFor)
}

// about adds the hook to the fields of an interruption.
func (c call) about(e *zerolog.Event) *zerolog.Event {
	return e.Str("node", c.node).EmbedObject(c.rec).Str("group", c.hook.Group).Str("hook", c.hook.Name)
}

func (c call) completed(log zerolog.Logger, err error) {
	e := c.about(log.Info())
	if err != nil {
		e.Str("reason", err.Error()).Msg("lifecycle hook had ended already")
		return
	}
	e.Int("heartbeats", c.hook.Heartbeats).Msg("lifecycle hook completed")
}

const (
	// registers is how long we wait for a Node whose group is already ending it: it may be
	// about to register.
	registers = 10 * time.Second

	// longestHook is the longest timeout that AWS allows a hook.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
	longestHook = 2 * time.Hour
)

// Accepter settles notices that come with a hook. If there is a Node, the notice is recorded
// and its hook completed after the drain. There is no record for a hook without a Node, which
// Accepter completes itself, nor for a launch hook, which it completes once the Node is Ready.
// It passes everything else on.
type Accepter struct {
	Next  interruption.Accepter // records notices, as [spot-handler/handler.Handler] does
	Hooks Hooks
	Nodes nodes.Finder
	// Rules says whether a node is ours to touch: the hooks of others are left to others.
	Rules nodes.RulesFunc

	Logger zerolog.Logger
}

// Accept is as [spot-handler/handler.Handler]'s. It may be slow, as Auto Scaling may be, but
// holds nobody else up.
func (a Accepter) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	if n.Hook == nil {
		return a.Next.Accept(ctx, n)
	}
	node, ok := a.Nodes.Find(n)
	if ok && n.Hook.Launching { // of a hook that ends an instance, Next says so
		if rules, _ := a.Rules(node, false); rules.Unmanaged != "" {
			return interruption.Unmanaged, nil
		}
	}
	switch {
	case n.Hook.Launching:
		return a.launched(ctx, n, node)
	case ok:
		verdict, err := a.Next.Accept(ctx, n)
		if verdict == interruption.Unknown { // the Node has just gone
			return "", fmt.Errorf("record lifecycle hook of instance %s: %w", n.InstanceID, interruption.ErrNotYet)
		}
		return verdict, err
	case time.Since(n.Received) < registers:
		return "", fmt.Errorf("find node of instance %s: %w", n.InstanceID, interruption.ErrNotYet)
	}
	return a.complete(ctx, call{rec: interruption.NewRecord(n), hook: *n.Hook}, interruption.Unknown, n.Hook.Since.Add(longestHook))
}

// launched lets an instance go into service when its Node is Ready. If it never is, the hook
// times out and the group does as the hook says.
func (a Accepter) launched(ctx context.Context, n interruption.Notice, node *corev1.Node) (interruption.Verdict, error) {
	c, otherwise := call{rec: interruption.NewRecord(n), hook: *n.Hook}, interruption.Unknown
	if node != nil {
		c.node, otherwise = node.Name, interruption.Ignored
	}
	timeout := longestHook
	if limits, err := a.Hooks.Limits(ctx, *n.Hook); err == nil && limits.Timeout > 0 {
		timeout = limits.Timeout
	}
	until := n.Hook.Since.Add(timeout)
	switch {
	case node != nil && nodes.Ready(node):
		return a.complete(ctx, c, otherwise, until)
	case time.Now().After(until):
		c.about(a.Logger.Warn()).Msg("launched node is not ready, lifecycle hook left to its timeout")
		return otherwise, nil
	}
	return "", fmt.Errorf("wait for node of instance %s to be ready: %w", n.InstanceID, interruption.ErrNotYet)
}

// complete completes the hook of a notice that needs no record. If it cannot, the verdict is
// otherwise: at once if that is not allowed, which is how the role says that a group belongs to
// another cluster, else after until.
func (a Accepter) complete(ctx context.Context, c call, otherwise interruption.Verdict, until time.Time) (interruption.Verdict, error) {
	err := a.Hooks.Complete(ctx, c.node, c.rec.Instance, c.hook)
	switch {
	case err == nil, errors.Is(err, ErrGone):
		c.completed(a.Logger, err)
		return interruption.Completed, nil
	case errors.Is(err, ErrDenied), time.Now().After(until):
		return otherwise, nil
	}
	return "", fmt.Errorf("complete lifecycle hook %s of instance %s: %w", c.hook.Name, c.rec.Instance, err)
}
