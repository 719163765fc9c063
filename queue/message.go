package queue

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/util/cache"

	"spot-handler/handler/awsfault"
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
	verdict, err := c.settle(ctx, m)
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

// settle submits the notices until Accept has returned nil for each, and returns what
// became of the message: the strongest verdict on any of its notices. Each notice is settled
// once, with one exception: where only some instances of a message are known, the others
// are looked up a second time after lookAgain, as the message is not given back for them.
func (c *Consumer) settle(ctx context.Context, m *message) (interruption.Verdict, error) {
	wait := awsfault.Pauses(firstAcceptPause, maxAcceptPause, 0.5)
	best, looked := interruption.Verdict(""), false
	pending, unknown := m.notices, []interruption.Notice(nil)
	for {
		tried := c.acceptAll(ctx, pending)
		var failed, notYet error
		failing, noNode := "", 0
		var appears <-chan struct{}
		var again []interruption.Notice
		for i, t := range tried {
			switch {
			case errors.Is(t.err, interruption.ErrNotYet):
				notYet = t.err
				if errors.Is(t.err, interruption.ErrNoNode) {
					noNode++
				}
				if e, ok := errors.AsType[*interruption.NoNodeError](t.err); ok {
					appears = e.Over
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
			c.recovered(&c.accepting, "notices can be accepted again")
		}
		// The receive count can be missing, so the process also remembers what it gave back: no message
		// goes round for ever.
		unknownSoFar := noNode == len(pending) && (best == "" || best == interruption.Unknown)
		if unknownSoFar && m.receiveCount < 2 && isNew(c.retried, m.id) {
			return "", errLookAgain
		}
		if len(pending) == 0 {
			if best == interruption.Unknown || len(unknown) == 0 || looked {
				return best, nil
			}
			if smithytime.SleepWithContext(ctx, lookAgain) != nil {
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
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-appears:
		case <-time.After(min(wait.NextBackOff(), remaining)):
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
