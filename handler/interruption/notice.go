package interruption

import "time"

// Notice is one announcement about one instance, as a source understood it.
// Sources have checked the form of every field; nobody has yet checked that the
// instance belongs to this cluster.
type Notice struct {
	Kind   Kind
	Source Source

	// EventID names the announcement: the id of the EventBridge event, or for the
	// metadata service, which gives none, a text made of what it said. The same
	// announcement always has the same id; two sources never share one.
	EventID string

	// InstanceID is the EC2 instance, such as i-0123456789abcdef0.
	InstanceID string

	// NodeName is the Node, where the source knows it (the metadata service is read
	// on the node itself); empty otherwise.
	NodeName string

	// Action is what EC2 will do: terminate, stop or hibernate; empty where the
	// announcement does not say.
	Action string

	// Noticed is when EC2 made the announcement, Received is when we first saw it.
	Noticed, Received time.Time

	// Deadline is when EC2 acts; zero where there is no such time.
	Deadline time.Time
}

// Verdict is what became of a notice that was accepted without an error.
type Verdict string

const (
	// Accepted: the notice changed the record, which is now durable on the Node.
	Accepted Verdict = "accepted"
	// Duplicate: the record on the Node already says all that the notice says.
	Duplicate Verdict = "duplicate"
	// Stale: the deadline is minutes in the past and the node is alive: the notice
	// was about an earlier life of it, or comes hours late.
	Stale Verdict = "stale"
	// Ignored: the operator has asked not to act on this kind.
	Ignored Verdict = "ignored"
	// Unknown: no Node of this cluster is that instance, at least not yet.
	Unknown Verdict = "unknown"
)

// Verdicts lists every verdict.
func Verdicts() []Verdict { return []Verdict{Accepted, Duplicate, Stale, Ignored, Unknown} }
