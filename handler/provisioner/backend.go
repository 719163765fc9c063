package provisioner

import (
	"context"

	corev1 "k8s.io/api/core/v1"

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

	// Choose says what Request would ask for, and asks for nothing.
	Choose(ctx context.Context, node *corev1.Node, rec interruption.Record, need Need) (interruption.Replacement, error)

	// Release hands the drained node back to what made it. It is idempotent.
	Release(ctx context.Context, node *corev1.Node, rec interruption.Record) error

	// Run follows the backend's replacements until ctx is done, and then returns nil. Until
	// the first is requested it only takes back what an earlier process has left behind.
	Run(ctx context.Context) error
}
