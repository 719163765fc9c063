package queue

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/semaphore"

	"spot-handler/handler/interruption"
)

const (
	// lookAgain is for how long a message about an unknown instance is given back. A Node
	// that is being registered appears within seconds.
	lookAgain = 5 * time.Second

	// maxPreview is how much of a message that cannot be read is logged, in bytes.
	maxPreview = 512
)

// A message is one that is in work.
type message struct {
	id           string
	handle       string // by which this delivery of it is deleted or hidden
	receiveCount int
	sent         time.Time // zero where SQS does not say
	received     time.Time
	notices      []interruption.Notice

	room  *semaphore.Weighted // which the message takes up
	takes int64

	hiddenUntil time.Time // owned by inFlight while it has the message
}

// handle sees a message to its end:
//
//	accept ─┬─ every notice settled ──────────► deleted
//	        ├─ no instance known, first time ─► back to the queue for lookAgain
//	        ├─ no room to wait for its Node ──► left to the queue
//	        ├─ too late for another attempt ──► left to the queue
//	        └─ ctx canceled ──────────────────► given back to the queue at once
func (c *Consumer) handle(ctx, acts context.Context, m *message) {
	if c.dryRun && c.previews.has(m.id) {
		return
	}
	c.inFlight.add(m)
	verdict, err := c.settle(ctx, m)
	c.inFlight.remove(m)

	switch {
	case err != nil && ctx.Err() != nil:
		c.hide(acts, m, 0)
	case errors.Is(err, errLookAgain):
		c.hide(acts, m, lookAgain)
	case errors.Is(err, errNoRoom):
		c.tellNoRoom(m)
	case errors.Is(err, interruption.ErrNotYet) && c.dryRun:
		// It comes back, and is tried again.
	case err != nil:
		c.log.Error().Err(err).Str("message_id", m.id).Msg("gave up on message, left to the queue")
		c.count(m, outcomeFailed)
	default:
		c.delete(acts, m)
		c.count(m, outcomeOf(verdict))
	}
}

// ignore ends a message that was understood and needs no action.
func (c *Consumer) ignore(acts context.Context, m *message) {
	c.delete(acts, m)
	c.count(m, outcomeIgnored)
}

// worthAnotherLook reports whether a message about an unknown instance should be received
// once more. The receive count can be missing, so the process also remembers what it gave
// back: no message goes round for ever.
func (c *Consumer) worthAnotherLook(ctx context.Context, m *message) bool {
	return m.receiveCount < 2 && !c.redrive.wait(ctx).lastReceive(m.receiveCount) && c.retried.add(m.id)
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

// tellRejection logs and counts what is wrong with a message, and reports whether it did:
// a message that comes back is not counted again.
func (c *Consumer) tellRejection(m *message, err error, preview, text string) bool {
	if !c.unreadable.add(m.id) {
		return false
	}
	r, _ := errors.AsType[*rejection](err)
	c.log.Warn().Err(err).Str("message_id", m.id).Str("reason", string(r.reason)).Time("sent", m.sent).Str("body", preview).Msg(text)
	c.metrics.rejections(r.reason).Inc()
	return true
}

// delete removes a message from the queue. One that cannot be deleted before it is visible
// again comes back as a duplicate.
func (c *Consumer) delete(acts context.Context, m *message) {
	if c.dryRun || m.handle == "" {
		return
	}
	c.deleter.do(acts, batchEntry{handle: m.handle}, m.hiddenUntil)
}

// hide makes a message visible to all again after d. If that fails, it becomes visible by
// itself a little later.
func (c *Consumer) hide(acts context.Context, m *message, d time.Duration) {
	if c.dryRun || m.handle == "" {
		return
	}
	c.hider.do(acts, batchEntry{handle: m.handle, hideFor: d}, m.hiddenUntil)
}

// count notes the end of a message. A dry run sees the same message again and
// again, and counts its end once.
func (c *Consumer) count(m *message, o outcome) {
	if c.dryRun && o != outcomeFailed && !c.previews.add(m.id) {
		return
	}
	c.metrics.messages(o).Inc()
	if len(m.notices) > 0 && m.notices[0].Kind != interruption.ScheduledEvent { // EC2 repeats it for days
		c.metrics.age.Observe(max(0, m.received.Sub(m.notices[0].Noticed)).Seconds())
	}
}
