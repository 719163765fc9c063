package queue

import (
	"cmp"
	"context"
	"errors"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

const (
	// acceptTimeout makes a hung connection to the API server cost one attempt, not
	// the message. It leaves room for a burst that queues up at a rate limiter.
	acceptTimeout = 20 * time.Second

	// Between failed attempts, give or take half.
	firstAcceptPause = 200 * time.Millisecond
	maxAcceptPause   = 5 * time.Second

	// acceptsAtOnce is how many notices of one message are submitted side by side: a
	// message about a thousand instances takes as long as a few dozen messages.
	acceptsAtOnce = 32

	// patience is how long past its deadline a notice is still tried. EC2 has acted by then.
	patience = 5 * time.Minute

	// maxWork bounds the work on a message whose deadline is days ahead, or that has none.
	// SQS hides no message for more than 12 hours in all.
	maxWork = 11 * time.Hour
)

var (
	// errLookAgain: the message is about unknown instances alone, and was received for the
	// first time.
	errLookAgain = errors.New("no instance is known")
	// errNoRoom: too many messages wait for a Node.
	errNoRoom = errors.New("no room to wait")
)

// acceptPauses are those between attempts to submit a message's notices.
func acceptPauses() *backoff.ExponentialBackOff {
	return awsfault.Pauses(firstAcceptPause, maxAcceptPause, 0.5)
}

// acceptAll submits the notices until Accept has returned nil for each, and returns what
// became of the message: the strongest verdict on any of its notices. Each notice is settled
// once, with one exception: where only some instances of a message are known, the others
// are looked up a second time after lookAgain, as the message is not given back for them.
func (c *Consumer) acceptAll(ctx context.Context, m *message) (interruption.Verdict, error) {
	wait := acceptPauses()
	best, lookedAgain := interruption.Verdict(""), false
	pending, unknown := m.notices, []interruption.Notice(nil)
	for {
		r := c.round(ctx, best, pending)
		best, pending, unknown = r.best, r.pending, append(unknown, r.unknown...)
		if r.failed == nil {
			c.recovered(&c.accepting, "notices can be accepted again")
		}
		// The receive count can be missing, so the process also remembers what it gave back: no message
		// goes round for ever.
		if r.knowsNoInstance() && m.receiveCount < 2 && isNew(c.retried, m.id) {
			return "", errLookAgain
		}
		if len(pending) > 0 {
			if err := c.pause(ctx, m, r, wait); err != nil {
				return "", err
			}
			continue
		}
		if best == interruption.Unknown || len(unknown) == 0 || lookedAgain {
			return best, nil
		}
		if smithytime.SleepWithContext(ctx, lookAgain) != nil {
			return "", context.Cause(ctx)
		}
		pending, unknown, lookedAgain = unknown, nil, true
	}
}

// pause waits until the pending notices are worth another attempt. An error ends the work on the message.
func (c *Consumer) pause(ctx context.Context, m *message, r round, wait backoff.BackOff) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.notYet != nil && !c.park(m) {
		return errNoRoom
	}
	if r.failed != nil && c.accepting.Changed(reasonAccept) {
		c.log.Error().Err(r.failed).Str("message_id", m.id).Str("instance_id", r.failing).Msg("cannot accept notice, trying again")
	}
	remaining := time.Until(c.giveUpAt(m, r.pending))
	if remaining <= 0 {
		return cmp.Or(r.failed, r.notYet)
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.appears:
	case <-time.After(min(wait.NextBackOff(), remaining)):
	}
	return nil
}

// round is what came of the notices that were pending, each submitted once.
type round struct {
	best    interruption.Verdict  // the strongest until now; empty if there is none
	unknown []interruption.Notice // those of no known instance
	pending []interruption.Notice // those to be submitted again

	failed  error  // the last that failed
	failing string // its instance

	notYet  error           // the last that can only be accepted later
	noNode  int             // how many of those wait for their Node
	appears <-chan struct{} // closed when a Node appears; nil if none is waited for
}

// round submits the notices that are pending. best is the strongest verdict of earlier rounds.
func (c *Consumer) round(ctx context.Context, best interruption.Verdict, pending []interruption.Notice) round {
	r := round{best: best}
	for i, t := range c.acceptEach(ctx, pending) {
		r.add(pending[i], t)
	}
	return r
}

func (r *round) add(n interruption.Notice, t attempt) {
	switch {
	case t.err == nil:
		r.best = stronger(r.best, t.verdict)
		if t.verdict == interruption.Unknown {
			r.unknown = append(r.unknown, n)
		}
		return
	case errors.Is(t.err, interruption.ErrNotYet):
		r.notYet = t.err
		if errors.Is(t.err, interruption.ErrNoNode) {
			r.noNode++
		}
		if e, ok := errors.AsType[*interruption.NoNodeError](t.err); ok {
			r.appears = e.Over
		}
	default:
		r.failed, r.failing = t.err, n.InstanceID
	}
	r.pending = append(r.pending, n)
}

// knowsNoInstance reports whether all instances of the message are unknown.
func (r round) knowsNoInstance() bool {
	return r.noNode == len(r.pending) && (r.best == "" || r.best == interruption.Unknown)
}

// An attempt is what Accept said.
type attempt struct {
	verdict interruption.Verdict
	err     error
}

// acceptEach submits notices, up to acceptsAtOnce of them side by side, and returns what
// became of each.
func (c *Consumer) acceptEach(ctx context.Context, notices []interruption.Notice) []attempt {
	tried := make([]attempt, len(notices))
	if len(notices) == 1 { // nearly always; in a burst, another goroutine for each message is 13 MiB
		tried[0].verdict, tried[0].err = c.accept(ctx, notices[0])
		return tried
	}
	var calls errgroup.Group
	calls.SetLimit(acceptsAtOnce)
	for i, n := range notices {
		calls.Go(func() error {
			tried[i].verdict, tried[i].err = c.accept(ctx, n)
			return nil
		})
	}
	_ = calls.Wait() // each attempt keeps its own error
	return tried
}

func (c *Consumer) accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	return c.opts.Accepter.Accept(ctx, n)
}

// giveUpAt is when the last of the pending notices is not worth another attempt.
func (c *Consumer) giveUpAt(m *message, pending []interruption.Notice) time.Time {
	if c.opts.DryRun {
		return m.received.Add(hiddenFor) // it comes back then, as nobody keeps it hidden
	}
	limit := m.received.Add(maxWork)
	var last time.Time
	for _, n := range pending {
		if n.Deadline.IsZero() {
			return limit
		}
		if past := n.Deadline.Add(patience); past.After(last) {
			last = past
		}
	}
	return interruption.Earlier(last, limit)
}

// stronger is the one of two verdicts that says more; a message with several notices is
// counted as the strongest of all.
func stronger(a, b interruption.Verdict) interruption.Verdict {
	for _, v := range interruption.Verdicts() { // Accepted first, Unknown last
		if v == a || v == b {
			return v
		}
	}
	return interruption.Accepted
}
