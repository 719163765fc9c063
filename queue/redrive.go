package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

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

// lastReceive reports whether a message received so often will not be seen again.
func (p redrivePolicy) lastReceive(receives int) bool {
	return p.maxReceives > 0 && receives >= p.maxReceives
}

// redriveLifetime is how long what was read counts.
func redriveLifetime(err error) time.Duration {
	if err != nil {
		return redriveRetry
	}
	return redriveEvery
}

// redrivePolicy is the last policy that could be read.
func (c *Consumer) redrivePolicy(ctx context.Context) redrivePolicy {
	policy, _ := c.redrive.Get(ctx, "") // the error was logged when it was news
	return policy
}

func (c *Consumer) keepRedrive(ctx context.Context, key string) (redrivePolicy, error) {
	policy, err := c.readRedrive(ctx)
	if err != nil {
		c.fault(&c.reading, err, "cannot read the queue's redrive policy, messages that cannot be used are left in the queue")
		last, _ := c.redrive.Last(key)
		return last.Value, err
	}
	c.recovered(&c.reading, "the queue's redrive policy can be read again")
	return policy, nil
}

func (c *Consumer) readRedrive(ctx context.Context) (redrivePolicy, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := c.opts.Client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl:       aws.String(c.opts.QueueURL),
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameRedrivePolicy},
	}, withoutRetries)
	if err != nil {
		return redrivePolicy{}, classify("get attributes of", "sqs:GetQueueAttributes", c.opts.QueueURL, err)
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
