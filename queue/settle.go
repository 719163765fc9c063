package queue

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"

	"spot-handler/handler/interruption"
)

const (
	// acceptTimeout makes a hung connection to the API server cost one attempt, not
	// the message. It leaves room for a burst that queues up at a rate limiter.
	acceptTimeout = 20 * time.Second

	// Between failed attempts, give or take half.
	firstAcceptBackoff = 200 * time.Millisecond
	maxAcceptBackoff   = 5 * time.Second

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

// settle submits the notices until Accept has returned nil for each, and returns what
// became of the message: the strongest verdict on any of its notices. Each notice is settled
// once, with one exception: where only some instances of a message are known, the others
// are looked up a second time after lookAgain, as the message is not given back for them.
func (c *Consumer) settle(ctx context.Context, m *message) (interruption.Verdict, error) {
	wait := &backoff.ExponentialBackOff{
		InitialInterval:     firstAcceptBackoff,
		RandomizationFactor: 0.5,
		Multiplier:          2,
		MaxInterval:         maxAcceptBackoff,
	}
	best, looked := interruption.Verdict(""), false
	pending, unknown := m.notices, []interruption.Notice(nil)
	for {
		tried := c.acceptAll(ctx, pending)
		var failed, notYet error
		failing, noNode := "", 0
		var again []interruption.Notice
		for i, t := range tried {
			switch {
			case errors.Is(t.err, interruption.ErrNotYet):
				notYet = t.err
				if errors.Is(t.err, interruption.ErrNoNode) {
					noNode++
				}
			case t.err != nil:
				failed, failing = t.err, pending[i].InstanceID
			case t.verdict == interruption.Unknown:
				unknown = append(unknown, pending[i])
				fallthrough
			default:
				best = stronger(best, t.verdict)
				continue
			}
			again = append(again, pending[i])
		}
		pending = again
		if failed == nil {
			c.recover(&c.accepting, "notices can be accepted again")
		}
		if noNode == len(pending) && (best == "" || best == interruption.Unknown) && c.worthAnotherLook(ctx, m) {
			return "", errLookAgain
		}
		if len(pending) == 0 {
			if best == interruption.Unknown || len(unknown) == 0 || looked {
				return best, nil
			}
			if !sleep(ctx, lookAgain) {
				return "", context.Cause(ctx)
			}
			pending, unknown, looked = unknown, nil, true
			continue
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if notYet != nil && !c.park(m) {
			return "", errNoRoom
		}
		if failed != nil && c.accepting.Changed(reasonAccept) {
			c.log.Error().Err(failed).Str("message_id", m.id).Str("instance_id", failing).Msg("cannot accept notice, trying again")
		}
		remaining := time.Until(c.giveUpAt(m, pending))
		if remaining <= 0 {
			return "", cmp.Or(failed, notYet)
		}
		if !sleep(ctx, min(wait.NextBackOff(), remaining)) {
			return "", context.Cause(ctx)
		}
	}
}

// An attempt is what Accept said.
type attempt struct {
	verdict interruption.Verdict
	err     error
}

// acceptAll submits notices, up to acceptsAtOnce of them side by side, and returns what
// became of each.
func (c *Consumer) acceptAll(ctx context.Context, notices []interruption.Notice) []attempt {
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
	return c.accepter.Accept(ctx, n)
}

// giveUpAt is when the last of the pending notices is not worth another attempt.
func (c *Consumer) giveUpAt(m *message, pending []interruption.Notice) time.Time {
	if c.dryRun {
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
	return earlier(last, limit)
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
