// Package observe follows interruptions as the API server shows them, and keeps a recording: what
// became of each node and each of its pods, and how many pods of their workloads were ready at
// every moment.
//
// An [Observer] takes what watches tell, each change singly and in order, so it does not miss even
// a moment with too few ready pods. It knows nothing but what it is told, and asks nobody.
// [Cluster.Watch] tells it, with the rights of whoever asks; it changes nothing.
package observe

import (
	"time"

	"spot-handler/cmd/spot-handler/internal/plan"
	"spot-handler/cmd/spot-handler/internal/status"
	"spot-handler/handler/interruption"
)

// Recording is what was seen, as plain data. Times are those of this machine's clock, at which a
// watch showed the change, except where EC2 or the API server says when.
type Recording struct {
	From      time.Time  `json:"from"`
	To        time.Time  `json:"to"`
	Nodes     []Node     `json:"nodes"`
	Workloads []Workload `json:"workloads,omitempty"`
	Budgets   []Budget   `json:"budgets,omitempty"`
	// Unread says what could not be watched, and why.
	Unread []string `json:"unread,omitempty"`
}

// Node is one interruption of a node.
type Node struct {
	Name   string            `json:"name"`
	Pool   string            `json:"pool,omitempty"`
	Kind   interruption.Kind `json:"kind"`
	Action string            `json:"action,omitempty"`
	// Rehearsal: an operator has made it up, and EC2 has not said anything since.
	Rehearsal bool       `json:"rehearsal,omitempty"`
	Noticed   time.Time  `json:"noticed"`            // when EC2 announced it
	Deadline  *time.Time `json:"deadline,omitempty"` // when EC2 acts

	Phases      []PhaseAt    `json:"phases"`
	Cordoned    *time.Time   `json:"cordoned,omitempty"`
	Replacement *Replacement `json:"replacement,omitempty"`
	Drained     *time.Time   `json:"drained,omitempty"` // the last pod that had to leave had left
	// Ended is when the drain ended by the record, and SlackSeconds what was left until the deadline.
	Ended        *time.Time `json:"ended,omitempty"`
	SlackSeconds *float64   `json:"slackSeconds,omitempty"`
	// End is what became of the node, at EndAt; empty while that is open.
	End   End        `json:"end,omitempty"`
	EndAt *time.Time `json:"endAt,omitempty"`

	Pods []Pod `json:"pods,omitempty"`
	// Counted are the pods by the record, which the daemon wrote.
	Counted *interruption.Pods `json:"counted,omitempty"`
}

// PhaseAt is a phase of the record, and when it began.
type PhaseAt struct {
	Phase interruption.Phase `json:"phase"`
	At    time.Time          `json:"at"`
}

// End is what becomes of a node.
type End string

// The ends.
const (
	Gone     End = "gone"     // the Node was deleted
	Restored End = "restored" // nothing stands against it any longer
)

// Replacement is the capacity that was requested in the node's place; the last one, if there were
// several.
type Replacement struct {
	Name      string     `json:"name,omitempty"`
	Pool      string     `json:"pool,omitempty"`
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Requested time.Time  `json:"requested"`
	Launched  *time.Time `json:"launched,omitempty"` // it had an instance; known of Karpenter only
	Ready     *time.Time `json:"ready,omitempty"`
}

// Pod is the life of a pod that had to leave, from the notice.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	// Workload is what made it, such as deployment/web; empty if nothing did.
	Workload string `json:"workload,omitempty"`

	GraceSeconds int64  `json:"graceSeconds"`           // that it asks for
	GivenSeconds *int64 `json:"givenSeconds,omitempty"` // that it was given

	Steps   []Step     `json:"steps"`
	Surged  *time.Time `json:"surged,omitempty"` // its successor was asked for
	Evicted *time.Time `json:"evicted,omitempty"`
	Gone    *time.Time `json:"gone,omitempty"`
	Refusal *Refusal   `json:"refusal,omitempty"`
	// Outcome is one of those that the record counts; empty while it is open.
	Outcome plan.Outcome `json:"outcome,omitempty"`
}

// Step is a part of a pod's life.
type Step struct {
	State status.State `json:"state"`
	For   string       `json:"for,omitempty"` // what it waited for
	From  time.Time    `json:"from"`
	To    time.Time    `json:"to"`
}

// Refusal says that the API server refused a pod's eviction.
type Refusal struct {
	From   time.Time `json:"from"`
	Times  int       `json:"times"` // that were told of
	Reason string    `json:"reason"`
}

// Workload is a controller with pods on the nodes.
type Workload struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"` // such as deployment/web
	Samples   []Sample `json:"samples"`
	// Fewest is the fewest ready pods, and Missing how many that was short of what had been
	// asked for and had been there: 0 is no dip.
	Fewest  int `json:"fewest"`
	Missing int `json:"missing"`
	// UnavailableSeconds adds up how long each pod was missing.
	UnavailableSeconds float64 `json:"unavailablePodSeconds"`
}

// Sample says how many pods of a workload are ready from a moment on.
type Sample struct {
	At    time.Time `json:"at"`
	Ready int       `json:"ready"`
	// Desired is how many the workload asks for.
	Desired int `json:"desired"`
}

// Budget is a disruption budget of pods that had to leave.
type Budget struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Workloads []string `json:"workloads,omitempty"`
	// Needed is how many healthy pods it asked for at the most, Fewest how many it had at the
	// least, by its own status.
	Needed int `json:"needed"`
	Fewest int `json:"fewest"`
}
