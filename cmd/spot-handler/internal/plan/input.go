package plan

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"spot-handler/cmd/spot-handler/internal/cluster"
	"spot-handler/drain"
	"spot-handler/handler/interruption"
)

// Input is what a forecast is made from: what was read of a cluster, and what is to happen to it.
// Nothing of it is changed.
type Input struct {
	cluster.Cluster // At is also the time of the first notice
	Lost            []Lost
	// Policy is that of the daemon in the cluster, and Settings where it was found.
	Policy   drain.Policy
	Settings string
	// Assumptions are what nobody knows.
	Assumptions Assumptions
}

// Lost is a node that EC2 takes.
type Lost struct {
	Node *corev1.Node
	Kind interruption.Kind
	// After is when the notice arrives, after the first; it is negative of one that is Underway.
	After time.Duration
	// Underway: it is interrupted already. That is played, and the forecast is not about it.
	Underway bool
	// Deadline is the time from the notice until EC2 takes the node; nil if there is none.
	Deadline *time.Duration
	// Capacity is what its pods can wait for: PendingCapacity boots for Assumptions.Boot and then
	// takes pods; ReadyCapacity is there at once, as where the pods fit on other nodes.
	Capacity drain.Capacity
	// Replacement is what is told of it, without Ready, which is worked out; nil if nothing is.
	Replacement *Replacement
	// Deleted: when the drain ends, the node's NodeClaim is deleted, and Karpenter deletes what is left
	// on the node, with as much of its grace period as there is until the deadline.
	Deleted bool
	// Becomes is the Node that the replacement will be, empty: as small as the NodeClaim asks for, or
	// else like the one that it replaces. It is nil if it brings no Node of its own.
	Becomes *corev1.Node

	record interruption.Record
	spared string // why spot-handler would do nothing; empty otherwise
}
