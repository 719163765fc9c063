package interruption

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
		ScheduledEvent, RebalanceRecommendation, InstanceTerminating, CapacityReservationInterruption, SpotInterruption, StateChange,
	}
}

// strength orders kinds: if several reach one instance, the record shows the strongest. Unknown
// kinds, such as those of a newer version of this program, are the weakest.
func (k Kind) strength() int {
	for i, known := range Kinds() {
		if k == known {
			return i + 1
		}
	}
	return 0
}

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
// does on one in earnest, and puts the node back into service at the end. It stands in no list
// of sources, as nothing is read from it.
const Rehearsal Source = "rehearsal"

// Sources lists every source that is read.
func Sources() []Source { return []Source{IMDS, Queue} }
