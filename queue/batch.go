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

	"spot-handler/handler/awsfault"
)

const (
	// Between failed attempts, give or take half.
	firstBatchPause = 100 * time.Millisecond
	maxBatchPause   = 5 * time.Second
)

// submit makes a call for the entry, again and again until it succeeds, SQS says that it never
// will, until has passed or ctx is canceled.
func submit(ctx context.Context, b *batcher, e batchEntry, until time.Time) {
	_, _ = backoff.Retry(ctx, func() (struct{}, error) { // the call has logged what failed
		err := b.do(ctx, e)
		if final(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	},
		backoff.WithBackOff(awsfault.Pauses(firstBatchPause, maxBatchPause, 0.5)),
		backoff.WithMaxElapsedTime(max(time.Nanosecond, time.Until(until))))
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
	return c.batch(ctx, &c.deleting, deletion, len(entries), func(ctx context.Context) (batchAnswer, error) {
		out, err := c.opts.Client.DeleteMessageBatch(ctx, in)
		if err != nil {
			return batchAnswer{}, err
		}
		answer := batchAnswer{failed: out.Failed}
		for _, s := range out.Successful {
			answer.done = append(answer.done, s.Id)
		}
		return answer, nil
	})
}

func (c *Consumer) hideBatch(ctx context.Context, entries []batchEntry) []error {
	in := &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: aws.String(c.opts.QueueURL)}
	for i, e := range entries {
		in.Entries = append(in.Entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), ReceiptHandle: aws.String(e.handle), VisibilityTimeout: int32(e.hideFor / time.Second),
		})
	}
	return c.batch(ctx, &c.hiding, visibility, len(entries), func(ctx context.Context) (batchAnswer, error) {
		out, err := c.opts.Client.ChangeMessageVisibilityBatch(ctx, in)
		if err != nil {
			return batchAnswer{}, err
		}
		answer := batchAnswer{failed: out.Failed}
		for _, s := range out.Successful {
			answer.done = append(answer.done, s.Id)
		}
		return answer, nil
	})
}

// batchAnswer is what SQS says of each entry, which are named by their index.
type batchAnswer struct {
	done   []*string
	failed []types.BatchResultErrorEntry
}

// batch makes a call about n messages, and returns what came of each.
func (c *Consumer) batch(ctx context.Context, r *awsfault.Reporter, a action, n int, call func(context.Context) (batchAnswer, error)) []error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := call(ctx)
	if err != nil {
		err = classify(a.call, a.permission, c.opts.QueueURL, err)
		c.fault(r, err, a.failed)
		return slices.Repeat([]error{err}, n)
	}
	results := c.sorted(a, n, answer)
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

// sorted is an answer by message. One about which SQS says nothing has failed and can be tried again.
func (c *Consumer) sorted(a action, n int, answer batchAnswer) []error {
	results := slices.Repeat([]error{entryError(awsfault.Other, a.call, c.opts.QueueURL, "no result", "")}, n)
	for _, id := range answer.done {
		if i, ok := indexOf(id, n); ok {
			results[i] = nil
		}
	}
	for _, f := range answer.failed {
		i, ok := indexOf(f.Id, n)
		if !ok {
			continue
		}
		reason := awsfault.Unavailable
		switch {
		case a == visibility && notInFlight(aws.ToString(f.Code)):
			reason = reasonGone
		case f.SenderFault:
			reason = reasonEntry
		}
		results[i] = entryError(reason, a.call, c.opts.QueueURL, aws.ToString(f.Code), aws.ToString(f.Message))
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
