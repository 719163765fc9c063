// Package queue consumes the SQS queue that EventBridge feeds, and hands every
// interruption that is announced there to an Accepter.
//
// It understands what EventBridge sends about an instance's end (the table formats has the
// kinds, each with a file and samples in testdata), the lifecycle hooks that an Auto Scaling
// group sends straight to the queue, and all of these wrapped by SNS. A message has any
// number of notices. One that is understood and has none, such as a group's test
// notification, is deleted.
//
// Receivers long-poll side by side. A receiver parses a message and leaves the rest to a
// goroutine of the message's own, so no message holds up another. New starts nothing, and
// Run can be called once.
//
// Nothing is lost: a message is deleted only after Accept has returned nil for each of its
// notices, and stays hidden from other consumers until then. It is kept in memory alone
// where that takes longer than the queue retains messages. Accept is tried again in memory,
// with backoff: a message that went back to the queue for another try would come closer to
// the dead-letter queue each time. An error that wraps interruption.ErrNotYet is no fault,
// and Accept is tried again quietly every few seconds. With interruption.ErrNoNode the message
// is first given back once, as another consumer may know the instance. SQS delivers at least once and in no
// order, and a process can end between Accept and the deletion: Accept has to be idempotent.
//
// Messages that cannot be read are logged, counted and left for the redrive policy,
// or deleted where the queue has none. Faults of SQS are counted, logged when their
// reason changes and retried for ever; none of them ends Run.
//
// A queue is for the consumers of one cluster. There can be several of those, but what a
// consumer of another cluster takes is lost.
//
// A dry run receives messages and has them accepted, and no more: it neither deletes them
// nor changes their visibility. But SQS hides every message that it hands out for 30 s, and
// adds one to its receive count. So a dry run beside a consumer of the same queue delays
// that one's messages, and brings them closer to the dead-letter queue.
package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/util/cache"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/readcache"
)

const (
	// receivers fetch 40 messages per round trip: a burst of 1,000 arrives
	// within a second or so, and four idle long polls cost next to nothing.
	receivers = 4

	// maxInFlight bounds memory: each message is a goroutine, whose stack grows to 8 or 16 KiB. It
	// keeps every writer of notices busy several times over; more would only wait, and with 2,000
	// a burst took 20 MiB more. Receivers that wait for SQS have taken room for a batch each.
	maxInFlight = 500

	// maxWaiting bounds the messages that wait for a Node: about launch hooks, and about
	// instances that are no Node yet. Each waits for minutes or, if the Node is another
	// cluster's, until the hook's timeout or the notice's deadline. They take no room from the
	// others, which are in work for seconds and must not wait for them. So many take 40 MB.
	maxWaiting = 5000

	// noticesPerRoom is how many further notices of a message take as much room of
	// maxInFlight as another message would. The largest possible message fits, two might not.
	noticesPerRoom = 32

	// shutdownTimeout bounds what Run still does after its context is canceled: it deletes
	// the messages whose notices are on the Node by then, and gives back the others. One
	// batch call and two repetitions fit. What does not get done comes back as a duplicate.
	shutdownTimeout = 5 * time.Second
)

// Client is the subset of the SQS API that the consumer uses. It should not retry by itself:
// that would hide a fault from log and readiness for up to a minute.
type Client interface {
	ReceiveMessage(ctx context.Context, in *sqs.ReceiveMessageInput, opts ...func(*sqs.Options)) (*sqs.ReceiveMessageOutput, error)
	DeleteMessageBatch(ctx context.Context, in *sqs.DeleteMessageBatchInput, opts ...func(*sqs.Options)) (*sqs.DeleteMessageBatchOutput, error)
	ChangeMessageVisibilityBatch(ctx context.Context, in *sqs.ChangeMessageVisibilityBatchInput, opts ...func(*sqs.Options)) (*sqs.ChangeMessageVisibilityBatchOutput, error)
	GetQueueAttributes(ctx context.Context, in *sqs.GetQueueAttributesInput, opts ...func(*sqs.Options)) (*sqs.GetQueueAttributesOutput, error)
}

// Options says what a Consumer works with. Client, QueueURL, Accepter and Reserved are
// required.
type Options struct {
	Client   Client
	QueueURL string
	Accepter interruption.Accepter
	// Reserved returns the instances in a capacity reservation, as far as they are Nodes. It is asked each
	// time that such a message is received.
	Reserved func(reservation string) []string

	// DryRun leaves every message in the queue; see the package comment.
	DryRun bool

	Registerer prometheus.Registerer
	Logger     zerolog.Logger
}

// Consumer reads one queue.
type Consumer struct {
	opts    Options
	log     zerolog.Logger
	metrics *metrics
	source  *awsfault.Source

	room     *semaphore.Weighted // of maxInFlight
	waitRoom *semaphore.Weighted // of maxWaiting
	work     sync.WaitGroup      // messages in flight
	deleter  *batcher
	hider    *batcher
	endless  readcache.Cache[bool] // that SQS moves no message to a dead-letter queue, under the key ""

	receiving, accepting, deleting, hiding, reading awsfault.Reporter

	retried    *cache.LRUExpireCache // messages that were given back once, as their node was unknown
	unreadable *cache.LRUExpireCache // messages that were logged as unreadable
	previews   *cache.LRUExpireCache // in a dry run: messages whose outcome was counted
}

// New returns a consumer; Run makes it consume.
func New(o Options) *Consumer {
	c := &Consumer{
		opts:       o,
		log:        o.Logger.With().Str("component", "queue").Logger(),
		metrics:    newMetrics(o.Registerer),
		source:     awsfault.NewSource(o.Registerer, string(interruption.Queue), "consume queue", reasons()),
		room:       semaphore.NewWeighted(maxInFlight),
		waitRoom:   semaphore.NewWeighted(maxWaiting),
		retried:    cache.NewLRUExpireCache(maxRemembered),
		unreadable: cache.NewLRUExpireCache(maxRemembered),
		previews:   cache.NewLRUExpireCache(maxRemembered),
	}
	c.deleter = newBatcher(c.deleteBatch)
	c.hider = newBatcher(c.hideBatch)
	// An operator can add a dead-letter queue without restarting the consumer.
	c.endless.Read, c.endless.Lifetime = c.readRedrive, readcache.For(5*time.Minute, 30*time.Second, nil)
	return c
}

// errStopped is the cause with which the last calls are cut off.
var errStopped = errors.New("shutdown took longer than " + shutdownTimeout.String())

// Run consumes until ctx is canceled, finishes what was already accepted, and returns nil.
// No fault of SQS or of the Accepter ends it earlier.
func (c *Consumer) Run(ctx context.Context) error {
	// What an accepted message still needs outlives ctx: its notice is on the Node, and a
	// message that stays in the queue would only be received again.
	acts, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	cutOff := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(shutdownTimeout, func() { stop(errStopped) })
		context.AfterFunc(acts, func() { t.Stop() })
	})
	defer cutOff()

	c.log.Info().Str("queue", c.opts.QueueURL).Int("receivers", receivers).Bool("dry_run", c.opts.DryRun).Msg("consuming queue")

	var background, receiving sync.WaitGroup
	background.Go(func() { _, _ = c.endless.Get(ctx, "") }) // so what is wrong with it shows now
	for range receivers {
		receiving.Go(func() { c.receive(ctx, acts) })
	}

	receiving.Wait() // no message is added to work after this
	c.work.Wait()
	background.Wait()
	return nil
}

// Healthy returns nil while a receive call, empty or not, succeeded within the last minute, see
// [awsfault.Source].
func (c *Consumer) Healthy() error { return c.source.Healthy() }

// fault counts every fault and logs the news.
func (c *Consumer) fault(r *awsfault.Reporter, err error, text string) {
	c.source.Fault(c.log, r, err, text)
}

func (c *Consumer) recovered(r *awsfault.Reporter, text string) {
	if r.Recovered() {
		c.log.Info().Str("queue", c.opts.QueueURL).Msg(text)
	}
}

// readRedrive reports whether a message that is received again and again stays in the queue. It
// is what was read last if that cannot be read, and false at first: what is left can be looked at.
func (c *Consumer) readRedrive(ctx context.Context, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := c.opts.Client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl:       aws.String(c.opts.QueueURL),
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameRedrivePolicy},
	})
	if err != nil {
		err = classify("get attributes of", "sqs:GetQueueAttributes", c.opts.QueueURL, err)
		c.fault(&c.reading, err, "cannot read the queue's redrive policy, messages that cannot be used are left in the queue")
		last, _ := c.endless.Last(key)
		return last.Value, err
	}
	c.recovered(&c.reading, "the queue's redrive policy can be read again")
	return out.Attributes[string(types.QueueAttributeNameRedrivePolicy)] == "", nil
}
