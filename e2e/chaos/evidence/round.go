// Package evidence is what a round of chaos has left behind, and the invariants that hold
// for it, whatever has happened. All of it is data: the invariants ask nobody anything.
package evidence

import (
	"slices"
	"time"

	"spot-handler/handler/interruption"
)

// Round is the evidence of one round. All times are of one clock.
type Round struct {
	Margin time.Duration // the replicas' --margin

	Losses   []Loss
	Messages []Message
	Pods     []Pod
	// Elsewhere are the pods on nodes about which nothing was announced.
	Elsewhere []Pod
	Notices   []Notice
	Requests  []Request // of the replicas, and others' that end pods; by time of arrival
	Claims    []Claim
	Spans     []Span
	Starts    int // of processes

	// Unexpected are processes that ended otherwise than they were told to, with what they
	// said last.
	Unexpected []string

	// Unsettled is what was not as it should be when the time to settle was over.
	Unsettled []string
}

// Loss is a node about whose instance something was announced.
type Loss struct {
	Node, Instance string
	Announced      []Announcement // without repetitions, by time
	Canceled       time.Time      // zero: never
	Gone           time.Time      // when the Node went; zero: it is still there
}

// Announcement is one that says something new.
type Announcement struct {
	Kind     interruption.Kind
	Sent     time.Time
	Deadline time.Time // zero: it has none
}

// deadline is the tightest, and when it was announced; zero times if there is none.
func (l Loss) deadline() (deadline, announced time.Time) {
	for _, a := range l.Announced {
		if !a.Deadline.IsZero() && (deadline.IsZero() || a.Deadline.Before(deadline)) {
			deadline, announced = a.Deadline, a.Sent
		}
	}
	return deadline, announced
}

// Message is one of the queue.
type Message struct {
	ID, Node, Instance string
	Kind               interruption.Kind
	Deleted            time.Time // zero: never
}

// Pod is one that ran on a node about which something was announced.
type Pod struct {
	UID, Namespace, Name, Node string

	Grace       time.Duration // that it asks for
	Tolerates   bool          // every taint, so also the cordon
	Asks        bool          // to be notified
	Bound, Gone time.Time     // Gone is zero if it is still there
}

// Notice is a POST that a pod's receiver got.
type Notice struct {
	At                        time.Time
	ID, Type, Namespace, Name string
	Node                      string // whose end it is about
}

// Request is a line of the audit log.
type Request struct {
	// Replica and Process say who of ours has made it; empty for others. Process differs
	// after each start.
	Replica, Process string
	User             string

	Sent     time.Time // as seen on the link of a replica
	At, Done time.Time // at the API server

	Verb, Resource, Subresource, Namespace, Name string

	Code      int
	Forbidden bool // for want of a right, or by a policy
	Budget    bool // refused by a disruption budget

	UID    string               // precondition of an eviction or a deletion
	Grace  *time.Duration       // of an eviction or a deletion, if it says so
	Record *interruption.Record // that a patch of a Node writes
}

func (r Request) ours() bool      { return r.Process != "" }
func (r Request) succeeded() bool { return r.Code >= 200 && r.Code < 300 }

// perhaps: one whose client has gone can have taken effect all the same.
func (r Request) perhaps() bool { return r.succeeded() || r.Code == 0 || r.Code >= 499 }

func (r Request) is(resource, subresource string, verbs ...string) bool {
	return r.Resource == resource && r.Subresource == subresource && slices.Contains(verbs, r.Verb)
}

// endsPod: an eviction, or a deletion.
func (r Request) endsPod() bool {
	return r.is("pods", "eviction", "create") || r.is("pods", "", "delete")
}

// Claim is a NodeClaim that was made in place of an instance.
type Claim struct {
	Name, Replaces string
	Made           time.Time
	Going, Gone    time.Time // zero: not yet
	Launched       bool      // it has had an instance
}

// GivenUp: it went without ever having an instance, and another pool can be tried.
func (c Claim) GivenUp() bool { return !c.Launched && !c.Going.IsZero() }

// Span is a time in which nobody can be asked to be in time: that of a fault, or one in which
// the machine did not let this process run either.
type Span struct {
	What     string
	Replica  string // empty: it concerns all
	Paused   bool   // the replica's process
	Queue    bool   // the way to the queue: what is recorded already does not suffer
	Machine  bool   // no fault, but a machine that is too busy
	From, To time.Time
}
