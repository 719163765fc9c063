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

	// patience is how long past its deadline a notice is still worth trying for. EC2
	// has acted by then; what is left to say, another consumer may say.
	patience = 5 * time.Minute

	// maxWork bounds the work on a message without a deadline, or with one days
	// ahead. SQS hides no message for more than 12 hours in all.
	maxWork = 11 * time.Hour

	// lookAgain is how long a message about an unknown instance is given back for: a
	// node that is being registered appears within seconds.
	lookAgain = 5 * time.Second

	// maxPreview is how much of a message that cannot be read is logged, in bytes.
	maxPreview = 512
)

// A message is one that is in work.
type message struct {
	id       string
	handle   string // by which this delivery of it is deleted or hidden
	receives int
	sent     time.Time // zero where SQS does not say, as is
	received time.Time
	notices  []interruption.Notice

	hiddenUntil time.Time // owned by the keeper while it has the message
}

// handle sees a message to its end:
//
//	accept ─┬─ every notice settled ──────────► deleted
//	        ├─ no instance known, first time ─► back to the queue for lookAgain
//	        ├─ too late for another attempt ──► left to the queue
//	        └─ ctx canceled ──────────────────► released to other consumers
func (c *Consumer) handle(ctx, acts context.Context, m *message) {
	if c.dryRun && c.previews.has(m.id) {
		return
	}
	c.keeper.add(m)
	verdict, err := c.settle(ctx, m)
	c.keeper.remove(m)

	switch {
	case err != nil && ctx.Err() != nil:
		c.hide(acts, m, 0)
	case errors.Is(err, interruption.ErrNotYet) && c.dryRun:
		// It comes back, and is asked about again.
	case err != nil:
		c.log.Error().Err(err).Str("message_id", m.id).Msg("gave up on message, left to the queue")
		c.count(m, outcomeFailed)
	case verdict == interruption.Unknown && c.worthAnotherLook(acts, m):
		c.hide(acts, m, lookAgain)
	default:
		c.delete(acts, m)
		c.count(m, outcomeOf(verdict))
	}
}

// ignore ends a message that was understood and announces nothing to act on.
func (c *Consumer) ignore(acts context.Context, m *message) {
	c.delete(acts, m)
	c.count(m, outcomeIgnored)
}

// settle submits the notices until Accept has returned nil for each, and returns
// what became of the message: the most that became of any of its notices. Each notice is
// settled once; but where some instances of a message are known and others are not, those
// are looked up a second time, after lookAgain: the message is not given back for them.
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
		failing := ""
		var left []interruption.Notice
		for i, t := range tried {
			switch {
			case errors.Is(t.err, interruption.ErrNotYet):
				notYet = t.err
			case t.err != nil:
				failed, failing = t.err, pending[i].InstanceID
			case t.verdict == interruption.Unknown:
				unknown = append(unknown, pending[i])
				fallthrough
			default:
				best = stronger(best, t.verdict)
				continue
			}
			left = append(left, pending[i])
		}
		pending = left
		if failed == nil {
			c.recover(&c.accepting, "notices can be accepted again")
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

// acceptAll submits notices side by side, as far as acceptsAtOnce lets it, and returns
// what became of each.
func (c *Consumer) acceptAll(ctx context.Context, notices []interruption.Notice) []attempt {
	tried := make([]attempt, len(notices))
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

// worthAnotherLook reports whether a message about an unknown instance is to be
// received once more. The receive count may be missing: what was given back by this
// process already is remembered, so it does not go round for ever.
func (c *Consumer) worthAnotherLook(acts context.Context, m *message) bool {
	return m.receives < 2 && !c.redrive.wait(acts).lastReceive(m.receives) && c.retried.add(m.id)
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

// reject ends a message that cannot be read.
func (c *Consumer) reject(acts context.Context, m *message, err error, preview string) {
	if c.tellRejection(m, err, preview, "cannot use message") {
		r, _ := errors.AsType[*rejection](err)
		c.metrics.messages(r.outcome).Inc()
	}
	if policy := c.redrive.wait(acts); policy.known && !policy.exists {
		c.delete(acts, m)
	}
}

// tellRejection logs and counts what is wrong with a message, unless it was left before
// and has come back; it reports whether it has.
func (c *Consumer) tellRejection(m *message, err error, preview, text string) bool {
	if !c.rejected.add(m.id) {
		return false
	}
	r, _ := errors.AsType[*rejection](err)
	c.log.Warn().Err(err).Str("message_id", m.id).Str("reason", string(r.reason)).Time("sent", m.sent).Str("body", preview).Msg(text)
	c.metrics.rejected(r.reason).Inc()
	return true
}

// delete removes a message from the queue. What cannot be deleted before it is
// visible again comes back, and is a duplicate then.
func (c *Consumer) delete(acts context.Context, m *message) {
	if c.dryRun || m.handle == "" {
		return
	}
	c.deletes.do(acts, batchEntry{handle: m.handle}, m.hiddenUntil)
}

// hide makes a message visible to all again after d. Where that fails it becomes
// visible by itself, a little later.
func (c *Consumer) hide(acts context.Context, m *message, d time.Duration) {
	if c.dryRun || m.handle == "" {
		return
	}
	c.hides.do(acts, batchEntry{handle: m.handle, hideFor: d}, m.hiddenUntil)
}

// count notes the end of a message. A dry run sees the same message again and
// again, and counts its end once.
func (c *Consumer) count(m *message, o outcome) {
	if c.dryRun && o != outcomeFailed && !c.previews.add(m.id) {
		return
	}
	c.metrics.messages(o).Inc()
	if len(m.notices) > 0 && m.notices[0].Kind != interruption.ScheduledEvent { // of which EC2 tells again for days
		c.metrics.age.Observe(max(0, m.received.Sub(m.notices[0].Noticed)).Seconds())
	}
}
