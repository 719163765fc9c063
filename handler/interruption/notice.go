package interruption

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Notice is one announcement about one instance, as a source understood it. Sources have
// checked the form of every field; nobody has checked yet that the instance belongs to this
// cluster.
type Notice struct {
	Kind   Kind
	Source Source

	// EventID names the announcement: the id of the EventBridge event or, as the metadata
	// service gives none, a text made from what it said. The same announcement always has the
	// same id; two sources never share one.
	EventID string

	// InstanceID is the EC2 instance, such as i-0123456789abcdef0.
	InstanceID string

	// Reservation is the capacity reservation that the announcement is about, if it names that and no
	// instance. InstanceID is then its id too, until the source has asked which instances are in it.
	Reservation string

	// NodeName is the Node, if the source knows it (the metadata service is read on the node
	// itself); empty otherwise.
	NodeName string

	// Action is what EC2 will do, or has done: one of the Action constants; empty if the
	// announcement does not say.
	Action string

	// Noticed is when EC2 made the announcement, Received is when we first saw it.
	Noticed, Received time.Time

	// Deadline is when EC2 acts; zero if there is no such time.
	Deadline time.Time

	// Withdrawn: what EventID announced no longer stands, because EC2 has canceled or completed
	// it.
	Withdrawn bool

	// Release has the node of a rehearsal terminated at its end, as after an interruption.
	Release bool

	// Hook is the lifecycle hook at which the instance's Auto Scaling group waits; nil if none
	// is known.
	Hook *Hook
}

// Hook is one wait of an Auto Scaling group for whatever prepares an instance for its end (or
// for its start, see Launching). CompleteLifecycleAction completes it.
// https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_CompleteLifecycleAction.html
type Hook struct {
	Group string `json:"group"`           // AutoScalingGroupName
	Name  string `json:"name"`            // LifecycleHookName
	Token string `json:"token,omitempty"` // LifecycleActionToken

	// Since is when the group began to wait.
	Since time.Time `json:"since"`

	// Launching: the group waits to put the instance into service, not to end it. No record has
	// such a hook: there is nothing to drain.
	Launching bool `json:"-"`

	// What we have done about it.
	Until      time.Time `json:"until,omitzero"`       // when the group stops waiting, heartbeats included; zero until we have asked
	Heartbeats int       `json:"heartbeats,omitempty"` // recorded
	Beat       time.Time `json:"beat,omitzero"`        // when the last heartbeat was recorded
	Done       bool      `json:"done,omitempty"`       // completed, or gone by itself
}

// Same reports whether both are the same wait of the same group.
func (h Hook) Same(o Hook) bool { return h.Group == o.Group && h.Name == o.Name && h.Token == o.Token }

// SpotNotice is how long before it interrupts a spot instance EC2 announces that.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
const SpotNotice = 2 * time.Minute

// EC2 begins to terminate the instances of a Capacity Block half an hour before its end, and warns ten
// minutes before that. Blocks of UltraServers end earlier; the warning is the same.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-capacity-blocks.html
const (
	CapacityBlockCleared = 30 * time.Minute
	CapacityBlockNotice  = 10 * time.Minute
)

// Earlier is the earlier of two times, where zero means never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// Later is the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Accepter takes notices over from a source. Accept returns a nil error only when the record is
// durable, or the notice is provably not ours (the Verdict says which); then the notice is
// settled. An error means try again. Accept is called with the same notice more than once, and
// from many goroutines at once.
type Accepter interface {
	Accept(ctx context.Context, n Notice) (Verdict, error)
}

// ErrNotYet is what an error of Accept wraps if nothing is wrong but the notice can only be
// settled later, such as the launch of an instance whose Node is not Ready. The source keeps
// the notice and asks again.
var ErrNotYet = errors.New("not yet")

// ErrNoNode is the ErrNotYet of a notice that waits for its instance to become a Node. Nobody
// knows whether it will be one of this cluster.
var ErrNoNode = fmt.Errorf("no node is that instance: %w", ErrNotYet)

// NoNodeError is an ErrNoNode that says when it is worth asking again.
type NoNodeError struct {
	Instance string
	Over     <-chan struct{} // closed when the Node is there, or is waited for no longer; nil: now and then
}

func (e *NoNodeError) Error() string {
	return fmt.Sprintf("find node of instance %s: %v", e.Instance, ErrNoNode)
}

func (e *NoNodeError) Unwrap() error { return ErrNoNode }

// Verdict is what became of a notice that Accept took without an error.
type Verdict string

const (
	// Accepted: the notice changed the record, which is now durable on the Node.
	Accepted Verdict = "accepted"
	// Duplicate: the record on the Node already says all that the notice says.
	Duplicate Verdict = "duplicate"
	// Stale: the deadline is minutes in the past and the node is alive. The notice was about an
	// earlier life of the node, or comes hours late.
	Stale Verdict = "stale"
	// Ignored: the operator has asked not to act on this kind.
	Ignored Verdict = "ignored"
	// Completed: there is no Node to drain, or no longer one, and the lifecycle hook was
	// completed.
	Completed Verdict = "completed"
	// Unmanaged: the Node is opted out.
	Unmanaged Verdict = "unmanaged"
	// Unknown: no Node of this cluster is that instance, at least not yet.
	Unknown Verdict = "unknown"
)

// Verdicts lists every verdict.
func Verdicts() []Verdict {
	return []Verdict{Accepted, Completed, Duplicate, Stale, Ignored, Unmanaged, Unknown}
}

// Kind says how EC2 is about to end an instance. Operators see its text in the record, in the
// taint's value, in metrics and in logs.
type Kind string

const (
	// SpotInterruption is the notice that EC2 reclaims a spot instance, about two
	// minutes ahead.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
	SpotInterruption Kind = "spot-interruption"

	// RebalanceRecommendation says that a spot instance is at a raised risk of
	// interruption. It has no deadline and may never be followed by a notice.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
	RebalanceRecommendation Kind = "rebalance-recommendation"

	// CapacityReservationInterruption is the notice that an instance in a capacity
	// reservation ends because the reservation's owner takes the capacity back.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/interruptible-capacity-reservations.html
	CapacityReservationInterruption Kind = "capacity-reservation-interruption"

	// CapacityBlockExpiration says that EC2 is about to terminate all instances of a Capacity Block, as the
	// time that was paid for ends. It comes ten minutes ahead.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html
	CapacityBlockExpiration Kind = "capacity-block-expiration"

	// ScheduledEvent is maintenance that EC2 announces days ahead: a stop, a retirement or a
	// reboot. Its deadline is the start of the window. It can be canceled.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instances-status-check_sched.html
	ScheduledEvent Kind = "scheduled-event"

	// InstanceTerminating says that the instance's Auto Scaling group is about to terminate it,
	// and waits at a lifecycle hook until somebody completes the hook.
	// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
	InstanceTerminating Kind = "instance-terminating"

	// StateChange says that the instance is stopping or shutting down, or has already stopped
	// or terminated.
	// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html
	StateChange Kind = "state-change"
)

// Kinds lists every kind, weakest first: by how certain the instance's end is, and how soon it
// comes.
func Kinds() []Kind {
	return []Kind{
		ScheduledEvent, RebalanceRecommendation, CapacityBlockExpiration, InstanceTerminating, CapacityReservationInterruption,
		SpotInterruption, StateChange,
	}
}

// strength orders kinds: if several reach one instance, the record shows the strongest. Unknown
// kinds, such as those of a newer version of this program, are the weakest.
func (k Kind) strength() int { return slices.Index(Kinds(), k) + 1 }

// Stronger reports whether k overrules other.
func (k Kind) Stronger(other Kind) bool { return k.strength() > other.strength() }

// Certain reports whether the instance is sure to end, as opposed to being at risk or
// only rebooted.
func (k Kind) Certain() bool { return k != RebalanceRecommendation && k != ScheduledEvent }

// The actions that a Notice can announce, in EC2's own words: those of the spot notice, the
// codes of scheduled events without their prefix, and the states of an instance.
const (
	ActionTerminate = "terminate"
	ActionStop      = "stop"
	ActionHibernate = "hibernate"

	ActionRetirement  = "retirement"  // scheduled: the instance is stopped or terminated
	ActionReboot      = "reboot"      // scheduled: the instance comes back
	ActionMaintenance = "maintenance" // scheduled: network or power may be lost for a while

	ActionStopping     = "stopping" // states of an instance
	ActionStopped      = "stopped"
	ActionShuttingDown = "shutting-down"
	ActionTerminated   = "terminated"
)

// Source says where a notice came from.
type Source string

const (
	IMDS  Source = "imds"  // the instance metadata service, on the node itself
	Queue Source = "queue" // the SQS queue that EventBridge feeds
)

// Rehearsal is the source of a notice that an operator has made up: the daemon does all that it
// does on a real one, and puts the node back into service at the end. It stands in no list
// of sources, as nothing is read from it.
const Rehearsal Source = "rehearsal"

// Return is the source of a recommendation that spot-handler makes itself: an on-demand node that stands in
// for a spot node can go back to spot. It is handled as EC2's recommendations are, and whatever their
// policy is: nothing happens before a spot instance is Ready. It stands in no list of sources either.
const Return Source = "return"

// Sources lists every source that is read.
func Sources() []Source { return []Source{IMDS, Queue} }
