// Package lifecycle answers the lifecycle hooks of Auto Scaling groups: how long a group waits,
// that it should wait longer, and that it need not wait any more.
//
// Every method of [Client] makes at most one call, bounded in time, and may be called from many
// goroutines at once. It limits how many calls run concurrently, so the service need not refuse
// them. It does not retry: the caller knows until when that is worthwhile. Completing a hook
// twice, or one that has timed out, is [ErrGone], which leaves nothing to do.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"

	"spot-handler/handler/awsfault"
	"spot-handler/handler/interruption"
	"spot-handler/handler/readcache"
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
	actions *prometheus.CounterVec
	log     zerolog.Logger
	slots   *semaphore.Weighted // of callsAtOnce
	denials awsfault.Denials    // by action and group

	groups readcache.Cache[map[string]Limits] // of their hooks, by name
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
	c := &Client{
		api:     opts.AutoScaling,
		actions: newActions(opts.Registerer),
		log:     opts.Logger.With().Str("component", "lifecycle").Logger(),
		slots:   semaphore.NewWeighted(callsAtOnce),
	}
	c.groups.Read, c.groups.Lifetime = c.readHooks, readcache.For(knownFor, deniedFor, ErrDenied)
	return c
}

// Complete notifies the group that it need no longer wait for the instance. That goes for an
// instance that could not be drained too, as it ends either way. node is empty for one that is no
// Node of this cluster. If that is not allowed, it is how the role says that the group belongs to
// another cluster. That is not a fault, and is counted separately from faults.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CompleteLifecycleAction.html
func (c *Client) Complete(ctx context.Context, node, instance string, h interruption.Hook) error {
	a := complete
	switch {
	case node == "":
		a = completeUnknown
	case h.Launching:
		a = completeLaunch
	}
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
		return err // cancelled, which says nothing about the service
	}
	c.actions.WithLabelValues(a.label, resultOf(err)).Inc()
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

// Limits say how long a group waits at a hook.
type Limits struct {
	// Timeout runs from the beginning, and again from each heartbeat.
	Timeout time.Duration
	// Global runs from the beginning, whatever the heartbeats.
	Global time.Duration
}

// LimitsOf are the limits of a hook that waits for timeout: AWS allows a hundred times as much
// in total, and at most two days.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
func LimitsOf(timeout time.Duration) Limits {
	return Limits{Timeout: timeout, Global: min(48*time.Hour, 100*timeout)}
}

const (
	// knownFor is how long we take a group's hooks to be unchanged. A change to a hook only
	// affects instances that reach it later.
	knownFor = 10 * time.Minute
	// deniedFor is how long we wait before reading hooks again that we are not allowed to read.
	deniedFor = time.Minute
)

// Limits returns how long the group waits at the hook. One call serves all the hooks of a
// group, and all who ask. The error wraps ErrGone if the group has no such hook.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeLifecycleHooks.html
func (c *Client) Limits(ctx context.Context, h interruption.Hook) (Limits, error) {
	hooks, err := c.groups.Get(ctx, h.Group)
	if err != nil {
		return Limits{}, fmt.Errorf("read lifecycle hooks of group %s: %w", h.Group, err)
	}
	limits, ok := hooks[h.Name]
	if !ok {
		return Limits{}, fmt.Errorf("read lifecycle hooks of group %s: hook %s: %w", h.Group, h.Name, ErrGone)
	}
	return limits, nil
}

// readHooks makes the call, which is bounded.
func (c *Client) readHooks(ctx context.Context, group string) (map[string]Limits, error) {
	hooks := map[string]Limits{}
	err := c.call(ctx, describe, group, func(ctx context.Context) error {
		out, err := c.api.DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: &group})
		if err != nil {
			return err
		}
		for _, hook := range out.LifecycleHooks {
			limits := LimitsOf(time.Duration(aws.ToInt32(hook.HeartbeatTimeout)) * time.Second)
			if global := time.Duration(aws.ToInt32(hook.GlobalTimeout)) * time.Second; global > 0 {
				limits.Global = global
			}
			hooks[aws.ToString(hook.LifecycleHookName)] = limits
		}
		return nil
	})
	return hooks, err
}

// action is one of the calls: its names in IAM and in the metric, and what is logged, at which
// level, if it is not allowed.
type action struct {
	call, label, denied string
	level               zerolog.Level
}

const allowTagged = "allow the action, for groups with the cluster's tag"

var (
	complete = action{
		call:   "CompleteLifecycleAction",
		label:  "complete",
		denied: "cannot complete lifecycle hooks: groups wait until the hook's timeout; " + allowTagged,
		level:  zerolog.ErrorLevel,
	}
	// Counted separately: an instance that does not go into service is missed at once.
	completeLaunch = action{
		call:   "CompleteLifecycleAction",
		label:  "complete_launch",
		denied: "cannot complete launch hooks: instances do not go into service before the hook's timeout; " + allowTagged,
		level:  zerolog.ErrorLevel,
	}
	// Likewise: a role bound to the cluster's groups refuses those of others every day.
	completeUnknown = action{
		call:   "CompleteLifecycleAction",
		label:  "complete_unknown",
		denied: "lifecycle hook of an instance that is no Node is left: the group is another's, or lacks the cluster's tag",
		level:  zerolog.InfoLevel,
	}
	heartbeat = action{
		call:   "RecordLifecycleActionHeartbeat",
		label:  "heartbeat",
		denied: "cannot prolong lifecycle hooks: nodes are drained within the hook's timeout; " + allowTagged,
		level:  zerolog.ErrorLevel,
	}
	describe = action{
		call:   "DescribeLifecycleHooks",
		label:  "describe",
		denied: "cannot read lifecycle hooks: five minutes are taken for their timeout; allow the action",
		level:  zerolog.ErrorLevel,
	}
)
