package queue

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	smithytime "github.com/aws/smithy-go/time"
	"github.com/cenkalti/backoff/v5"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

const (
	// The most that SQS allows: fewer calls, and an answer as soon as there is one.
	batchSize = 10
	longPoll  = 20 * time.Second

	// firstPoll is how long each receiver's first call waits. It shows whether the queue can
	// be read, and makes the process ready after a second instead of a long poll.
	firstPoll = time.Second

	// hiddenFor is how long a received message stays hidden from others. It is short, because
	// a message of a crashed process waits as long for the next one. While the message is
	// in work it is prolonged.
	hiddenFor = 30 * time.Second

	// receiveTimeout makes a connection that hangs cost one long poll and a bit.
	receiveTimeout = longPoll + 10*time.Second

	// callTimeout is for all other calls, which SQS answers within milliseconds.
	callTimeout = 5 * time.Second

	// Between failed receives, give or take a quarter.
	firstReceivePause = 500 * time.Millisecond
	maxReceivePause   = 16 * time.Second

	// maxSent is in the year 5138. RFC 3339 cannot write times far beyond that.
	maxSent = 1e14

	// emptyPause keeps the receiver from spinning where the service ignores WaitTimeSeconds.
	emptyPause = time.Second
)

// receivePauses are those between failed receives.
func receivePauses() *backoff.ExponentialBackOff {
	return awsfault.Pauses(firstReceivePause, maxReceivePause, 0.25)
}

// receive is one receiver: it starts every message that it gets, until ctx is
// canceled.
func (c *Consumer) receive(ctx, acts context.Context) {
	wait := receivePauses()
	poll := firstPoll
	for {
		if c.room.Acquire(ctx, batchSize) != nil {
			return
		}
		asked := time.Now()
		messages, err := c.receiveBatch(ctx, poll)
		now := time.Now()
		for _, m := range messages {
			c.start(ctx, acts, m, now)
		}
		if unused := batchSize - len(messages); unused > 0 {
			c.room.Release(int64(unused))
		}

		var pause time.Duration
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.source.Failed(err)
			c.fault(&c.receiving, err, "cannot receive messages")
			pause = wait.NextBackOff()
		default:
			wait.Reset()
			poll = longPoll
			c.recovered(&c.receiving, "messages can be received again")
			c.source.Read(now)
			if len(messages) == 0 {
				pause = emptyPause - now.Sub(asked)
			}
		}
		if pause > 0 && smithytime.SleepWithContext(ctx, pause) != nil {
			return
		}
	}
}

func (c *Consumer) receiveBatch(ctx context.Context, poll time.Duration) ([]types.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, receiveTimeout)
	defer cancel()
	out, err := c.opts.Client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:            aws.String(c.opts.QueueURL),
		MaxNumberOfMessages: batchSize,
		WaitTimeSeconds:     int32(poll / time.Second),
		VisibilityTimeout:   int32(hiddenFor / time.Second),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			types.MessageSystemAttributeNameApproximateReceiveCount,
			types.MessageSystemAttributeNameSentTimestamp,
		},
	})
	if err != nil {
		return nil, classify("receive from", "sqs:ReceiveMessage", c.opts.QueueURL, err)
	}
	if len(out.Messages) > batchSize { // there is no room for more; the rest comes again
		return out.Messages[:batchSize], nil
	}
	return out.Messages, nil
}

// start parses a message and lets it run. From then on only the notices and the
// receipt handle are kept, not the body.
func (c *Consumer) start(ctx, acts context.Context, m types.Message, now time.Time) {
	msg := &message{
		id:           aws.ToString(m.MessageId),
		handle:       aws.ToString(m.ReceiptHandle),
		receiveCount: receiveCount(m),
		sent:         sentAt(m),
		received:     now,
		hiddenUntil:  now.Add(hiddenFor),
	}
	body := aws.ToString(m.Body)
	notices, err := parse(body, now)
	preview := ""
	if err != nil {
		preview = strings.Clone(body[:min(len(body), maxPreview)])
	}
	notices = c.ofInstances(notices)
	msg.notices = notices
	msg.room, msg.takes = c.room, 1 // which the receiver has taken for it
	if more := int64(len(notices) / noticesPerRoom); more > 0 {
		if !c.room.TryAcquire(more) {
			c.room.Release(1)
			c.noRoom(msg)
			return
		}
		msg.takes += more
	}
	if launching(notices) && !c.park(msg) {
		msg.room.Release(msg.takes)
		c.noRoom(msg)
		return
	}
	c.work.Go(func() {
		defer func() { msg.room.Release(msg.takes) }()
		switch {
		case err != nil && len(notices) == 0:
			c.reject(acts, msg, err, preview)
			return
		case err != nil:
			c.rejected(msg, err, preview, "cannot use part of message")
		}
		if len(notices) == 0 { // it was understood and needs no action
			c.delete(acts, msg)
			c.count(msg, outcome(interruption.Ignored))
			return
		}
		c.handle(ctx, acts, msg)
	})
}

// park moves a message to the room of those that wait for a Node, or reports that there is none.
func (c *Consumer) park(m *message) bool {
	if m.room == c.waitRoom {
		return true
	}
	if !c.waitRoom.TryAcquire(m.takes) {
		return false
	}
	m.room.Release(m.takes)
	m.room = c.waitRoom
	return true
}

func (c *Consumer) noRoom(m *message) {
	c.log.Debug().Str("message_id", m.id).Int("notices", len(m.notices)).Msg("no room for message, left to the queue")
}

// launching reports whether a message is about a launch hook.
func launching(notices []interruption.Notice) bool {
	return len(notices) > 0 && notices[0].Hook != nil && notices[0].Hook.Launching
}

// receiveCount is how often the message was received, this time included. Where SQS does
// not say, or says nonsense, it is 1.
func receiveCount(m types.Message) int {
	n, err := strconv.Atoi(m.Attributes[string(types.MessageSystemAttributeNameApproximateReceiveCount)])
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// sentAt is when the message was sent, as SQS says in milliseconds since 1970; zero where
// it does not.
func sentAt(m types.Message) time.Time {
	ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64)
	if err != nil || ms <= 0 || ms > maxSent {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

const (
	// A message in work is hidden for another hiddenFor when half of that has passed. If this fails it
	// is tried again a little later, at least twice before another consumer would get the message.
	prolongAt    = hiddenFor / 2
	prolongAgain = 5 * time.Second
)

// keepHidden keeps a message in work hidden until letGo. maxWork bounds the work, and so bounds this.
func (c *Consumer) keepHidden(acts context.Context, m *message) {
	if c.opts.DryRun || m.handle == "" { // without a handle SQS cannot hide it
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prolonging = time.AfterFunc(prolongAt, func() { c.prolong(acts, m) })
}

func (c *Consumer) prolong(acts context.Context, m *message) {
	until := time.Now().Add(hiddenFor)
	err := c.hider.do(acts, batchEntry{handle: m.handle, hideFor: hiddenFor})
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.prolonging == nil:
	case err == nil:
		m.hiddenUntil = until
		m.prolonging.Reset(prolongAt)
	case !final(err):
		m.prolonging.Reset(prolongAgain)
	}
	// Otherwise the delivery is not ours any more. The notice is still worth accepting; the
	// message comes back as a duplicate, unless the queue has dropped it.
}

// letGo ends keepHidden; hiddenUntil does not change after it.
func (m *message) letGo() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.prolonging != nil {
		m.prolonging.Stop()
		m.prolonging = nil
	}
}

// ofInstances makes of each notice about a capacity reservation one for each instance in it. If none is
// known the notice stays as it is: about no instance that anybody knows.
func (c *Consumer) ofInstances(notices []interruption.Notice) []interruption.Notice {
	if !slices.ContainsFunc(notices, func(n interruption.Notice) bool { return n.Reservation != "" }) {
		return notices
	}
	var each []interruption.Notice
	for _, n := range notices {
		instances := c.opts.Reserved(n.Reservation)
		for _, id := range instances {
			one := n
			one.InstanceID = id
			each = append(each, one)
		}
		if len(instances) == 0 {
			each = append(each, n)
		}
	}
	return each
}
