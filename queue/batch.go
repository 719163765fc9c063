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
	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/semaphore"

	"spot-handler/handler/awsfault"
)

const (
	// linger is how long an incomplete batch waits for more. Nobody waits for a deletion. In a burst
	// messages are settled about 4 ms apart: if a batch waited no longer, most would be of one or two.
	linger = 100 * time.Millisecond

	// maxBatchCalls is how many calls of one kind are open at once: enough for 1,000
	// deletions in a second at 50 ms each.
	maxBatchCalls = 8

	// Between failed attempts, give or take half.
	firstBatchPause = 100 * time.Millisecond
	maxBatchPause   = 5 * time.Second
)

// A batchEntry is one message in a batch call.
type batchEntry struct {
	handle  string
	hideFor time.Duration // of a change of visibility
}

type batcher = awsfault.Batcher[batchEntry, error]

// newBatcher makes batches of a call that returns a result for each entry.
func newBatcher(call func(context.Context, []batchEntry) []error) *batcher {
	slots := semaphore.NewWeighted(maxBatchCalls)
	return &batcher{Size: batchSize, Linger: linger, Call: func(ctx context.Context, entries []batchEntry) []error {
		if err := slots.Acquire(ctx, 1); err != nil {
			return slices.Repeat([]error{err}, len(entries))
		}
		defer slots.Release(1)
		return call(ctx, entries)
	}}
}

// submit makes a call for the entry, again and again until it succeeds, SQS says that it never
// will, until has passed or ctx is canceled.
func submit(ctx context.Context, b *batcher, e batchEntry, until time.Time) {
	_, _ = backoff.Retry(ctx, func() (struct{}, error) { // the call has logged what failed
		err := b.Do(ctx, e)
		if final(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(awsfault.Pauses(firstBatchPause, maxBatchPause, 0.5)), backoff.WithMaxElapsedTime(max(time.Nanosecond, time.Until(until))))
}

// An action is one call on messages: what errors call it, the permission that it needs,
// and what is logged when it fails.
type action struct{ call, permission, failed string }

var (
	deletion   = action{"delete from", "sqs:DeleteMessage", "cannot delete messages"}
	visibility = action{"change visibility in", "sqs:ChangeMessageVisibility", "cannot change the visibility of messages"}
)

func (c *Consumer) deleteBatch(ctx context.Context, entries []batchEntry) []error {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: aws.String(c.opts.QueueURL)}
	for i, e := range entries {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(e.handle),
		})
	}
	return c.batch(ctx, &c.deleting, deletion, len(entries), func(ctx context.Context) (done []*string, failed []types.BatchResultErrorEntry, err error) {
		out, err := c.opts.Client.DeleteMessageBatch(ctx, in)
		if err != nil {
			return nil, nil, err
		}
		for _, s := range out.Successful {
			done = append(done, s.Id)
		}
		return done, out.Failed, nil
	})
}

func (c *Consumer) hideBatch(ctx context.Context, entries []batchEntry) []error {
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(c.opts.QueueURL)}
	for i, e := range entries {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(e.handle), VisibilityTimeout: int32(e.hideFor / time.Second),
		})
	}
	return c.batch(ctx, &c.hiding, visibility, len(entries), func(ctx context.Context) (done []*string, failed []types.BatchResultErrorEntry, err error) {
		out, err := c.opts.Client.ChangeMessageVisibilityBatch(ctx, in)
		if err != nil {
			return nil, nil, err
		}
		for _, s := range out.Successful {
			done = append(done, s.Id)
		}
		return done, out.Failed, nil
	})
}

// batch makes a call about n messages, and sorts its answer by message. One about which SQS says
// nothing has failed and can be tried again.
func (c *Consumer) batch(ctx context.Context, r *awsfault.Reporter, a action, n int, call func(context.Context) (done []*string, failed []types.BatchResultErrorEntry, err error)) []error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	done, failed, err := call(ctx)
	if err != nil {
		err = classify(a.call, a.permission, c.opts.QueueURL, err)
		c.fault(r, err, a.failed)
		return slices.Repeat([]error{err}, n)
	}
	results := slices.Repeat([]error{entryError(awsfault.Other, a.call, c.opts.QueueURL, "no result", "")}, n)
	for _, id := range done {
		if i, ok := indexOf(id, n); ok {
			results[i] = nil
		}
	}
	for _, f := range failed {
		if i, ok := indexOf(f.Id, n); ok {
			reason := awsfault.Unavailable
			switch {
			case a == visibility && notInFlight(aws.ToString(f.Code)):
				reason = reasonGone
			case f.SenderFault:
				reason = reasonEntry
			}
			results[i] = entryError(reason, a.call, c.opts.QueueURL, aws.ToString(f.Code), aws.ToString(f.Message))
		}
	}
	clean := true
	for _, err := range results {
		switch {
		case err == nil:
		case awsfault.Of(err) == reasonGone:
			c.log.Debug().Err(err).Msg("message in work is no longer in the queue")
		default:
			clean = false
			c.fault(r, err, a.failed)
		}
	}
	if clean {
		c.recovered(r, "messages can be deleted and hidden again")
	}
	return results
}

// notInFlight reports whether SQS refuses to hide a message because we do not hold it any
// more. That is nobody's fault: the queue drops a message that has been in work for longer
// than it retains messages, which can be minutes, and another consumer can have received
// and deleted it meanwhile. SQS has a name for it in each of its two protocols.
func notInFlight(code string) bool {
	return strings.HasSuffix(code, "MessageNotInflight") || strings.HasPrefix(code, "InvalidParameterValue")
}

// indexOf reads the id that an entry of n was given.
func indexOf(id *string, n int) (int, bool) {
	i, err := strconv.Atoi(aws.ToString(id))
	return i, err == nil && i >= 0 && i < n
}
