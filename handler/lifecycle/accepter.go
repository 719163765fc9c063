package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/handler/interruption"
	"spot-handler/handler/nodes"
)

const (
	// registers is how long we wait for a Node whose group is already ending it: it may be
	// about to register.
	registers = 10 * time.Second

	// longestHook is the longest timeout that AWS allows a hook.
	// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html
	longestHook = 2 * time.Hour
)

// Accepter settles notices that come with a hook. If there is a Node, the notice is recorded
// and its hook completed after the drain. There is no record for a hook without a Node, which
// Accepter completes itself, nor for a launch hook, which it completes once the Node is Ready.
// It passes everything else on.
type Accepter struct {
	Next  interruption.Accepter // records notices, as [spot-handler/handler.Handler] does
	Hooks Hooks
	Nodes nodes.Finder
	// Rules says whether a node is ours to touch: the hooks of others are left to others.
	Rules nodes.RulesFunc

	Logger zerolog.Logger
}

// Accept is as [spot-handler/handler.Handler]'s. It may be slow, as Auto Scaling may be, but
// holds nobody else up.
func (a Accepter) Accept(ctx context.Context, n interruption.Notice) (interruption.Verdict, error) {
	if n.Hook == nil {
		return a.Next.Accept(ctx, n)
	}
	node, ok := a.Nodes.Find(n)
	if ok && n.Hook.Launching { // of a hook that ends an instance, Next says so
		if rules, _ := a.Rules(node, false); rules.Unmanaged != "" {
			return interruption.Unmanaged, nil
		}
	}
	switch {
	case n.Hook.Launching:
		return a.launched(ctx, n, node)
	case ok:
		verdict, err := a.Next.Accept(ctx, n)
		if verdict == interruption.Unknown { // the Node has just gone
			return "", fmt.Errorf("record lifecycle hook of instance %s: %w", n.InstanceID, interruption.ErrNotYet)
		}
		return verdict, err
	case time.Since(n.Received) < registers:
		return "", fmt.Errorf("find node of instance %s: %w", n.InstanceID, interruption.ErrNotYet)
	}
	return a.complete(ctx, n, interruption.Unknown, n.Hook.Since.Add(longestHook))
}

// launched lets an instance go into service when its Node is Ready. If it never is, the hook
// times out and the group does as the hook says.
func (a Accepter) launched(ctx context.Context, n interruption.Notice, node *corev1.Node) (interruption.Verdict, error) {
	otherwise, name := interruption.Unknown, ""
	if node != nil {
		otherwise, name = interruption.Ignored, node.Name
	}
	timeout := longestHook
	if limits, err := a.Hooks.Limits(ctx, *n.Hook); err == nil && limits.Timeout > 0 {
		timeout = limits.Timeout
	}
	until := n.Hook.Since.Add(timeout)
	switch {
	case node != nil && nodes.Ready(node):
		return a.complete(ctx, n, otherwise, until)
	case time.Now().After(until):
		about(a.Logger.Warn(), name, interruption.NewRecord(n), *n.Hook).Msg("launched node is not ready, lifecycle hook left to its timeout")
		return otherwise, nil
	}
	return "", fmt.Errorf("wait for node of instance %s to be ready: %w", n.InstanceID, interruption.ErrNotYet)
}

// complete completes the hook of a notice that needs no record. If it cannot, the verdict is
// otherwise: at once if that is not allowed, which is how the role says that a group belongs to
// another cluster, else after until.
func (a Accepter) complete(ctx context.Context, n interruption.Notice, otherwise interruption.Verdict, until time.Time) (interruption.Verdict, error) {
	name := ""
	if node, ok := a.Nodes.Find(n); ok {
		name = node.Name
	}
	err := a.Hooks.Complete(ctx, name, n.InstanceID, *n.Hook)
	switch {
	case err == nil, errors.Is(err, ErrGone):
		logCompleted(a.Logger, name, interruption.NewRecord(n), *n.Hook, err)
		return interruption.Completed, nil
	case errors.Is(err, ErrDenied), time.Now().After(until):
		return otherwise, nil
	}
	return "", fmt.Errorf("complete lifecycle hook %s of instance %s: %w", n.Hook.Name, n.InstanceID, err)
}
