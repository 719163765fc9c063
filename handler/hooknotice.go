package handler

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/lifecycle"
)

const (
	// registers is how long a Node is waited for whose group is ending it already: it may
	// be about to register.
	registers = 10 * time.Second

	// longestHook is the longest timeout that AWS allows a hook.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
	longestHook = 2 * time.Hour
)

// acceptHook settles a notice that comes with a hook. Where there is a Node it is drained,
// and its hook completed after that; a hook without a Node is completed here, and so is
// that of a launch, once the Node is Ready: for neither is there a record. It takes no
// place among the notices that are written, as Auto Scaling may be slow.
func (h *Handler) acceptHook(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	node, ok := h.opts.Index.Find(n)
	switch {
	case n.Hook.Launching && h.opts.Lifecycle.Hooks == nil:
		return interruption.Ignored, nil
	case n.Hook.Launching:
		return h.launched(ctx, n, node)
	case ok || h.opts.Lifecycle.Hooks == nil:
		verdict, err := h.record(ctx, n)
		if verdict == interruption.Unknown && h.opts.Lifecycle.Hooks != nil { // the Node went at this moment
			return "", fmt.Errorf("record lifecycle hook of instance %s: %w", n.InstanceID, interruption.ErrNotYet)
		}
		return verdict, err
	case time.Since(n.Received) < registers:
		return "", fmt.Errorf("find node of instance %s: %w", n.InstanceID, interruption.ErrNotYet)
	}
	return h.completeNow(ctx, n, interruption.Unknown, n.Hook.Since.Add(longestHook))
}

// launched lets an instance go into service when its Node is Ready. One that never becomes
// so is left to its hook's timeout, after which the group does as the hook says.
func (h *Handler) launched(ctx context.Context, n interruption.Notice, node *corev1.Node) (interruption.Verdict, error) {
	otherwise := interruption.Ignored
	if node == nil {
		otherwise = interruption.Unknown
	}
	timeout := longestHook
	if limits, err := h.opts.Lifecycle.Hooks.Limits(ctx, *n.Hook); err == nil && limits.Timeout > 0 {
		timeout = limits.Timeout
	}
	until := n.Hook.Since.Add(timeout)
	switch {
	case node != nil && isReady(node):
		return h.completeNow(ctx, n, otherwise, until)
	case time.Now().After(until):
		rec, name := interruption.NewRecord(n), ""
		if node != nil {
			name = node.Name
		}
		tellHook(h.opts.Logger.Warn(), name, rec, *n.Hook).Msg("launched node is not ready, lifecycle hook left to its timeout")
		return otherwise, nil
	}
	return "", fmt.Errorf("wait for node of instance %s to be ready: %w", n.InstanceID, interruption.ErrNotYet)
}

// completeNow completes the hook of a notice that needs no record. What cannot be completed
// is otherwise: at once where that is not allowed, which is how the role says that a group
// is of another cluster, else after until.
func (h *Handler) completeNow(ctx context.Context, n interruption.Notice, otherwise interruption.Verdict, until time.Time) (interruption.Verdict, error) {
	name, complete := n.NodeName, h.opts.Lifecycle.Hooks.CompleteUnknown
	if node, ok := h.opts.Index.Find(n); ok {
		name, complete = node.Name, h.opts.Lifecycle.Hooks.Complete
	}
	err := complete(ctx, n.InstanceID, *n.Hook)
	switch {
	case err == nil, gone(err):
		tellCompleted(h.opts.Logger, name, interruption.NewRecord(n), *n.Hook, err)
		return interruption.Completed, nil
	case errors.Is(err, lifecycle.ErrDenied), time.Now().After(until):
		return otherwise, nil
	}
	return "", fmt.Errorf("complete lifecycle hook %s of instance %s: %w", n.Hook.Name, n.InstanceID, err)
}
