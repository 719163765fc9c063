package provisioner

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
)

// Backend makes replacement nodes in one way. Its methods are safe for concurrent use, make
// at most a few API calls, and never wait for a machine: progress is announced through the
// notify function that the backend is made with.
type Backend interface {
	// Name is the backend's name in --provisioner, in the record and in metrics.
	Name() string

	// Made reports whether the backend's provisioner made the node, as far as the Node itself
	// says. Then no other backend is asked, whatever this one answers.
	Made(node *corev1.Node) bool

	// Request asks for a replacement, or says how far the one that the record names has come.
	// Unsupported with a reason means that this backend can do nothing for the node.
	Request(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (interruption.Replacement, error)

	// Terminate ends the drained node if that is the backend's to do: its NodeClaim is deleted, or its
	// instance terminated. What the backend has made for its pods alone is removed. It is idempotent.
	Terminate(ctx context.Context, node *corev1.Node, rec interruption.Record) error

	// Run follows the backend's replacements until ctx is done, and then returns nil. Until
	// the first is requested it only removes what an earlier process has left behind.
	Run(ctx context.Context) error
}

// The states of a replacement, as [interruption.Replacement] has them.
const (
	StateRequested   = "Requested"   // asked for
	StateLaunched    = "Launched"    // there is an instance, and it boots
	StateReady       = "Ready"       // pods can be scheduled to it
	StateFailed      = "Failed"      // there will be none, see Reason
	StateUnsupported = "Unsupported" // none was asked for, see Reason
)

// States lists every state.
func States() []string {
	return []string{StateRequested, StateLaunched, StateReady, StateFailed, StateUnsupported}
}

// Pending reports whether a replacement in the state is still coming, and worth waiting for.
func Pending(state string) bool { return state == StateRequested || state == StateLaunched }

// CapacityOf is what pods can wait for if r is their node's replacement. If r is nil none was asked for
// yet, and one may come.
func CapacityOf(r *interruption.Replacement) plan.Capacity {
	switch {
	case r == nil, Pending(r.State):
		return plan.PendingCapacity
	case r.State == StateReady:
		return plan.ReadyCapacity
	}
	return plan.NoCapacity
}

// What Options.Choice can be. All but Auto and None are names of backends, which
// [interruption.Replacement] has too.
const (
	Auto        = "auto"        // by what made the node
	Karpenter   = "karpenter"   // a NodeClaim
	ASG         = "asg"         // the node's Auto Scaling group launches another instance
	Placeholder = "placeholder" // low-priority pods, for which any autoscaler makes room
	None        = "none"        // no replacement: drain only
)

// Spare is the backend of an answer that names no replacement: the pods fit on nodes that are
// there.
const Spare = "spare"

// Room says whether pods of a node fit on the other nodes that are there. What it has promised to a
// node stands until it says otherwise, or until Forget.
type Room interface {
	Fit(ctx context.Context, node *corev1.Node, pods []*corev1.Pod) (Fit, error)
	Forget(node string)
}

// Fit is whether pods fit.
type Fit struct {
	Known   bool   // if not, the node is reconciled again when it is
	Against string // why they do not; empty if they do
}

// Need is what has to find a new home.
type Need struct {
	// Moving are the pods that must leave the node, including those that a disruption budget
	// blocks and those that ask not to be disrupted. Their specs must be complete, as the
	// replacement's size and pool follow from them.
	Moving []*corev1.Pod
	// Daemons are the DaemonSet pods of the interrupted node, which its replacement will run
	// too.
	Daemons []*corev1.Pod
	// Surged are those of Moving whose replacement pods are made before they leave. A pending
	// replacement pod itself tells every autoscaler what it needs.
	Surged map[types.UID]bool
}

// NeedOf is what of the node's pods has to find a new home.
func NeedOf(view plan.View) Need {
	return Need{Moving: view.Homeless(), Surged: view.Surged, Daemons: view.Daemons}
}

// Asked is the replacement that the record says was requested from the backend, or nil. One that is
// only being looked for has no name yet.
func Asked(rec interruption.Record, backend string) *interruption.Replacement {
	if r := rec.Replacement; r != nil && r.Backend == backend && r.Name != "" {
		return r
	}
	return nil
}

// Unsupported is the answer that a backend can do nothing for a node.
func Unsupported(backend, reason string) interruption.Replacement {
	return interruption.Replacement{Backend: backend, State: StateUnsupported, Reason: reason}
}

// Failed is a replacement of which nothing will come.
func Failed(r interruption.Replacement, reason string) interruption.Replacement {
	r.State, r.Reason = StateFailed, reason
	return r
}
