package asg

import (
	"cmp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/autoscaling/types"

	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
)

// stage is how far a node is.
type stage int

const (
	looking  stage = iota // its group is not known yet
	found                 // it has a group, which the record on the Node does not name yet
	leaving               // ready to be detached
	detached              // it has left, or is leaving: a replacement will come
	ready                 // the replacement is there
	refused               // there will be none
)

// entry is one interrupted node.
type entry struct {
	node, instance string
	received       time.Time
	deadline       time.Time // zero: none
	asked          time.Time // when this process was first asked

	inherited bool // the record named a group already when this process was first asked

	stage    stage
	group    string
	intended string    // the group that the record on the Node names
	again    time.Time // when to look again after a refusal; zero: never
	answer   interruption.Replacement
}

// newEntry is how a process begins with a node: prev is what the record names.
func newEntry(node string, rec interruption.Record, prev *interruption.Replacement) *entry {
	e := &entry{node: node, instance: rec.Instance, received: rec.Received, deadline: rec.DeadlineTime(), asked: time.Now()}
	e.answer = interruption.Replacement{Backend: provisioner.ASG, State: provisioner.StateRequested}
	if prev != nil {
		e.answer, e.group, e.inherited = *prev, prev.Pool, true
		if prev.State == provisioner.StateLaunched {
			e.stage = detached
		}
	}
	return e
}

// locate says what follows from where the instance is; a nil member is in no group.
func (e *entry) locate(member *types.AutoScalingInstanceDetails) {
	if member == nil {
		if e.intended == "" {
			e.refuse(provisioner.StateUnsupported, reasonNoGroup)
			e.again = time.Time{} // it does not go back by itself
			return
		}
		e.departed(e.intended) // by us, or it has ended: the group replaces it either way
		return
	}
	group, state := aws.ToString(member.AutoScalingGroupName), aws.ToString(member.LifecycleState)
	switch {
	case state == string(types.LifecycleStateInService):
		e.group, e.stage = group, found
		e.answer = interruption.Replacement{Backend: provisioner.ASG, Name: group, Pool: group, State: provisioner.StateRequested}
		if e.intended == group {
			e.stage = leaving
		}
	case isLeaving(state):
		e.departed(group)
	default:
		// A group does not count an instance in Standby, and would launch none for it. One
		// that is Pending or in a warm pool cannot be detached.
		e.refuse(provisioner.StateUnsupported, "the instance is "+state+" in Auto Scaling group "+group)
	}
}

// isLeaving reports whether an instance in the state can no longer be detached, as it is
// being detached or ended.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-lifecycle.html
func isLeaving(state string) bool {
	return strings.HasPrefix(state, "Detach") || strings.HasPrefix(state, "Terminat")
}

// isWarm reports whether an instance in the state is in its group's warm pool: it boots, its
// Node might even be Ready, and it is stopped again.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/warm-pool-instance-lifecycle.html
func isWarm(state string) bool { return strings.HasPrefix(state, "Warmed:") }

func (e *entry) departed(group string) {
	e.stage, e.group = detached, group
	e.answer = interruption.Replacement{Backend: provisioner.ASG, Name: group, Pool: group, State: provisioner.StateLaunched}
}

func (e *entry) replacedBy(instance string) {
	e.stage = ready
	e.answer = interruption.Replacement{Backend: provisioner.ASG, Name: instance, Pool: e.group, State: provisioner.StateReady}
}

// refusedFor is how long a refusal stands before it is tried again.
const refusedFor = time.Minute

// refuse answers that there is no replacement. Unsupported is tried again after a while;
// Failed is final.
func (e *entry) refuse(state, reason string) {
	e.stage, e.again = refused, time.Now().Add(refusedFor)
	e.answer = interruption.Replacement{Backend: provisioner.ASG, State: state, Reason: reason}
	if state == provisioner.StateFailed {
		e.answer.Name, e.answer.Pool, e.again = e.group, e.group, time.Time{}
	}
}

// sooner orders nodes by who needs its replacement first.
func sooner(a, b *entry) int {
	switch {
	case a.deadline.IsZero() != b.deadline.IsZero():
		if a.deadline.IsZero() {
			return 1
		}
		return -1
	default:
		return cmp.Or(a.deadline.Compare(b.deadline), a.received.Compare(b.received), cmp.Compare(a.node, b.node))
	}
}
