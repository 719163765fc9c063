package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"spot-handler/handler/interruption"
)

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
	// maxGroups bounds the groups that we remember.
	maxGroups = 1000
)

// lookup is one reading of a group's hooks, shared by all who ask about the group.
type lookup struct {
	done  chan struct{}
	hooks map[string]Limits // by name
	err   error
	until time.Time // when to read again; zero while it is under way
}

// Limits returns how long the group waits at the hook. One call serves all the hooks of a
// group, and all who ask. The error wraps ErrGone if the group has no such hook.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeLifecycleHooks.html
func (c *Client) Limits(ctx context.Context, h interruption.Hook) (Limits, error) {
	now := time.Now()
	c.mu.Lock()
	l := c.groups[h.Group]
	mine := l == nil || !l.until.IsZero() && now.After(l.until)
	if mine {
		if len(c.groups) >= maxGroups {
			clear(c.groups)
		}
		l = &lookup{done: make(chan struct{})}
		c.groups[h.Group] = l
	}
	c.mu.Unlock()
	if mine {
		c.look(ctx, h.Group, l)
	}
	select {
	case <-l.done:
	case <-ctx.Done():
		return Limits{}, fmt.Errorf("read lifecycle hooks of group %s: %w", h.Group, context.Cause(ctx))
	}
	if l.err != nil {
		return Limits{}, fmt.Errorf("read lifecycle hooks of group %s: %w", h.Group, l.err)
	}
	limits, ok := l.hooks[h.Name]
	if !ok {
		return Limits{}, fmt.Errorf("read lifecycle hooks of group %s: hook %s: %w", h.Group, h.Name, ErrGone)
	}
	return limits, nil
}

func (c *Client) look(ctx context.Context, group string, l *lookup) {
	var out *autoscaling.DescribeLifecycleHooksOutput
	err := c.call(ctx, describe, group, func(ctx context.Context) (err error) {
		out, err = c.api.DescribeLifecycleHooks(ctx, &autoscaling.DescribeLifecycleHooksInput{AutoScalingGroupName: &group})
		return err
	})
	hooks := map[string]Limits{}
	if err == nil {
		for _, hook := range out.LifecycleHooks {
			limits := LimitsOf(time.Duration(aws.ToInt32(hook.HeartbeatTimeout)) * time.Second)
			if global := time.Duration(aws.ToInt32(hook.GlobalTimeout)) * time.Second; global > 0 {
				limits.Global = global
			}
			hooks[aws.ToString(hook.LifecycleHookName)] = limits
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l.hooks, l.err, l.until = hooks, err, time.Now()
	switch {
	case err == nil:
		l.until = l.until.Add(knownFor)
	case errors.Is(err, ErrDenied):
		l.until = l.until.Add(deniedFor)
	}
	close(l.done)
}
