package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/util/cache"

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

	mu          sync.Mutex  // guards what follows, until letGo
	hiddenUntil time.Time   // from other consumers
	prolonging  *time.Timer // nil before keepHidden, and after letGo
}

// handle sees a message to its end:
//
//	accept ─┬─ every notice settled ──────────► deleted
//	        ├─ no instance known, first time ─► back to the queue for lookAgain
//	        ├─ no room to wait for its Node ──► left to the queue
//	        ├─ too late for another attempt ──► left to the queue
//	        └─ ctx canceled ──────────────────► given back to the queue at once
func (c *Consumer) handle(ctx, acts context.Context, m *message) {
	if _, seen := c.previews.Get(m.id); seen && c.opts.DryRun {
		return
	}
	c.keepHidden(acts, m)
	verdict, err := c.acceptAll(ctx, m)
	m.letGo()

	switch {
	case err != nil && ctx.Err() != nil:
		c.hide(acts, m, 0)
	case errors.Is(err, errLookAgain):
		c.hide(acts, m, lookAgain)
	case errors.Is(err, errNoRoom):
		c.noRoom(m)
	case errors.Is(err, interruption.ErrNotYet) && c.opts.DryRun:
		// It comes back, and is tried again.
	case err != nil:
		c.log.Error().Err(err).Str("message_id", m.id).Msg("gave up on message, left to the queue")
		c.count(m, outcomeFailed)
	default:
		c.delete(acts, m)
		c.count(m, outcomeOf(verdict))
	}
}

// reject ends a message that cannot be read.
func (c *Consumer) reject(acts context.Context, m *message, err error, preview string) {
	if c.rejected(m, err, preview, "cannot use message") {
		r, _ := errors.AsType[*rejection](err)
		c.metrics.messages(r.outcome).Inc()
	}
	if endless, _ := c.endless.Get(acts, ""); endless { // the error was logged when it was news
		c.delete(acts, m)
	}
}

// rejected logs and counts what is wrong with a message, and reports whether it did:
// a message that comes back is not counted again.
func (c *Consumer) rejected(m *message, err error, preview, text string) bool {
	if !isNew(c.unreadable, m.id) {
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
	if c.opts.DryRun || m.handle == "" {
		return
	}
	submit(acts, c.deleter, batchEntry{handle: m.handle}, m.hiddenUntil)
}

// hide makes a message visible to all again after d. If that fails, it becomes visible by
// itself a little later.
func (c *Consumer) hide(acts context.Context, m *message, d time.Duration) {
	if c.opts.DryRun || m.handle == "" {
		return
	}
	submit(acts, c.hider, batchEntry{handle: m.handle, hideFor: d}, m.hiddenUntil)
}

// count notes the end of a message. A dry run sees the same message again and
// again, and counts its end once.
func (c *Consumer) count(m *message, o outcome) {
	if c.opts.DryRun && o != outcomeFailed && !isNew(c.previews, m.id) {
		return
	}
	c.metrics.messages(o).Inc()
	if len(m.notices) > 0 && m.notices[0].Kind != interruption.ScheduledEvent { // EC2 repeats it for days
		c.metrics.age.Observe(max(0, m.received.Sub(m.notices[0].Noticed)).Seconds())
	}
}

const (
	// maxRemembered is how many message ids each memory holds: several bursts' worth. They are
	// kept for as long as SQS can keep a message.
	maxRemembered = 4096
	rememberedFor = 14 * 24 * time.Hour
)

// isNew reports whether the memory does not hold the id yet, and adds it.
func isNew(memory *cache.LRUExpireCache, id string) bool {
	_, known := memory.Get(id)
	memory.Add(id, nil, rememberedFor)
	return !known
}
