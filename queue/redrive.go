package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	smithytime "github.com/aws/smithy-go/time"

	"spot-handler/handler/awsfault"
)

const (
	// An operator can add a dead-letter queue without restarting the consumer.
	redriveEvery = 5 * time.Minute
	redriveRetry = 30 * time.Second
)

// A redrivePolicy says whether SQS itself moves a message that is received too often to a
// dead-letter queue.
type redrivePolicy struct {
	known       bool // false until the queue's attributes could be read
	exists      bool
	maxReceives int // zero where it is not known
}

// redrive is the policy as it was last read.
type redrive struct {
	asked chan struct{} // closed after the first attempt to read it
	once  sync.Once

	mu     sync.Mutex
	policy redrivePolicy
}

func newRedrive() *redrive { return &redrive{asked: make(chan struct{})} }

// wait returns the policy, after the first attempt to read it, or when ctx ends.
func (r *redrive) wait(ctx context.Context) redrivePolicy {
	select {
	case <-r.asked:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.policy
}

// lastReceive reports whether a message received so often will not be seen again.
func (p redrivePolicy) lastReceive(receives int) bool {
	return p.maxReceives > 0 && receives >= p.maxReceives
}

func (r *redrive) answered() { r.once.Do(func() { close(r.asked) }) }

// watchRedrive reads the policy every few minutes until ctx is canceled. The last one that
// could be read counts.
func (c *Consumer) watchRedrive(ctx context.Context) {
	defer c.redrive.answered()
	var r awsfault.Reporter
	for {
		policy, err := c.readRedrive(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := redriveEvery
		if err != nil {
			c.fault(&r, err, "cannot read the queue's redrive policy, messages that cannot be used are left in the queue")
			pause = redriveRetry
		} else {
			c.recovered(&r, "the queue's redrive policy can be read again")
			c.redrive.mu.Lock()
			c.redrive.policy = policy
			c.redrive.mu.Unlock()
		}
		c.redrive.answered()
		if smithytime.SleepWithContext(ctx, pause) != nil {
			return
		}
	}
}

func (c *Consumer) readRedrive(ctx context.Context) (redrivePolicy, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := c.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl:       aws.String(c.queue),
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameRedrivePolicy},
	}, withoutRetries)
	if err != nil {
		return redrivePolicy{}, classify("get attributes of", "sqs:GetQueueAttributes", c.queue, err)
	}
	return parseRedrive(out.Attributes[string(types.QueueAttributeNameRedrivePolicy)])
}

// parseRedrive reads the attribute, empty where there is no policy:
// {"deadLetterTargetArn":"arn:...","maxReceiveCount":5}; the count can be a string.
func parseRedrive(text string) (redrivePolicy, error) {
	if text == "" {
		return redrivePolicy{known: true}, nil
	}
	var doc struct {
		MaxReceiveCount json.RawMessage `json:"maxReceiveCount"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		return redrivePolicy{}, &awsfault.Fault{Reason: awsfault.Other, Err: fmt.Errorf("parse redrive policy %.256q: %w", text, err)}
	}
	n, err := strconv.Atoi(strings.Trim(string(doc.MaxReceiveCount), `"`))
	if err != nil || n < 1 {
		n = 0 // there is a policy, whatever its count
	}
	return redrivePolicy{known: true, exists: true, maxReceives: n}, nil
}
