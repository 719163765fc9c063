package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
)

// AutoScaling is the subset of the Auto Scaling API that answers hooks. The client should not
// retry by itself.
type AutoScaling interface {
	CompleteLifecycleAction(ctx context.Context, in *autoscaling.CompleteLifecycleActionInput, opts ...func(*autoscaling.Options)) (*autoscaling.CompleteLifecycleActionOutput, error)
	RecordLifecycleActionHeartbeat(ctx context.Context, in *autoscaling.RecordLifecycleActionHeartbeatInput, opts ...func(*autoscaling.Options)) (*autoscaling.RecordLifecycleActionHeartbeatOutput, error)
	DescribeLifecycleHooks(ctx context.Context, in *autoscaling.DescribeLifecycleHooksInput, opts ...func(*autoscaling.Options)) (*autoscaling.DescribeLifecycleHooksOutput, error)
}

var (
	// ErrGone is wrapped if the group does not wait at that hook: it was completed, it timed
	// out, or there is no such hook. Asking again would not change that.
	ErrGone = errors.New("the group does not wait at this hook")

	// ErrDenied is wrapped if a call fails until somebody changes the role. Client logs it once
	// for each action and group.
	ErrDenied = errors.New("not allowed")
)

// Options configure a Client.
type Options struct {
	AutoScaling AutoScaling

	Registerer prometheus.Registerer // nil: metrics are kept but not exposed
	Logger     zerolog.Logger
}

// Client answers hooks.
type Client struct {
	api     AutoScaling
	metrics *metrics
	log     zerolog.Logger
	slots   *semaphore.Weighted // of callsAtOnce
	denials awsfault.Denials    // by action and group

	mu     sync.Mutex
	groups map[string]*lookup // by group
}

const (
	// callsAtOnce is how many calls are made concurrently. A call takes a tenth of a second, so
	// a group that shrinks by a hundred nodes gets its answers within seconds. It leaves room
	// in the account's own limit for these calls, which all its tools share.
	callsAtOnce = 8

	// callTimeout bounds one call: the service answers within a second or two.
	callTimeout = 10 * time.Second
)

// New returns a Client. It makes no call.
func New(opts Options) *Client {
	return &Client{
		api: opts.AutoScaling, metrics: newMetrics(opts.Registerer),
		log:   opts.Logger.With().Str("component", "lifecycle").Logger(),
		slots: semaphore.NewWeighted(callsAtOnce), groups: map[string]*lookup{},
	}
}

// Complete tells the group that it need no longer wait for the instance. That goes for an
// instance that could not be drained too, as it ends either way.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CompleteLifecycleAction.html
func (c *Client) Complete(ctx context.Context, instance string, h interruption.Hook) error {
	if h.Launching {
		return c.complete(ctx, completeLaunch, instance, h)
	}
	return c.complete(ctx, complete, instance, h)
}

// CompleteUnknown is Complete for an instance that is no Node of this cluster. If it is not
// allowed, that is how the role says that the group belongs to another cluster. That is not a
// fault, and is counted separately from faults.
func (c *Client) CompleteUnknown(ctx context.Context, instance string, h interruption.Hook) error {
	return c.complete(ctx, completeUnknown, instance, h)
}

func (c *Client) complete(ctx context.Context, a action, instance string, h interruption.Hook) error {
	return c.call(ctx, a, h.Group, func(ctx context.Context) error {
		_, err := c.api.CompleteLifecycleAction(ctx, &autoscaling.CompleteLifecycleActionInput{
			AutoScalingGroupName: &h.Group, LifecycleHookName: &h.Name, LifecycleActionToken: token(h),
			InstanceId: &instance, LifecycleActionResult: aws.String("CONTINUE"),
		})
		return err
	})
}

// Heartbeat makes the group wait for the hook's whole timeout again, from now on.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_RecordLifecycleActionHeartbeat.html
func (c *Client) Heartbeat(ctx context.Context, instance string, h interruption.Hook) error {
	return c.call(ctx, heartbeat, h.Group, func(ctx context.Context) error {
		_, err := c.api.RecordLifecycleActionHeartbeat(ctx, &autoscaling.RecordLifecycleActionHeartbeatInput{
			AutoScalingGroupName: &h.Group, LifecycleHookName: &h.Name, LifecycleActionToken: token(h), InstanceId: &instance,
		})
		return err
	})
}

func token(h interruption.Hook) *string {
	if h.Token == "" {
		return nil
	}
	return &h.Token
}

// call makes one call, counts it, and marks its error with ErrGone or ErrDenied where one
// applies.
func (c *Client) call(ctx context.Context, a action, group string, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.slots.Acquire(bounded, 1); err != nil {
		return fmt.Errorf("wait for a place among %d calls of Auto Scaling: %w", callsAtOnce, err)
	}
	err := awsfault.Classify("autoscaling", a.call, do(bounded))
	c.slots.Release(1)
	if ctx.Err() != nil && err != nil {
		return err // called off, which says nothing about the service
	}
	c.metrics.actions.WithLabelValues(a.label, awsfault.Result(err)).Inc()
	reason, news := c.denials.Note(a.label+" "+group, err)
	if news {
		c.log.WithLevel(a.level).Err(err).Str("group", group).Str("reason", reason).Msg(a.denied)
	}
	switch {
	case reason != "":
		return fmt.Errorf("%w: %w", ErrDenied, err)
	case awsfault.Of(err) == awsfault.Refused:
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}
