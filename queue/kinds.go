package queue

import (
	"time"

	"spot-handler/handler/interruption"
)

// maxCapacityLead is how far ahead the end of an instance in a capacity reservation can be
// announced. EC2 does so two minutes ahead.
const maxCapacityLead = 24 * time.Hour

// parseSpotInterruption reads an "EC2 Spot Instance Interruption Warning". It has no time for
// when EC2 acts.
func parseSpotInterruption(e *envelope) ([]interruption.Notice, error) {
	n := e.notice(interruption.SpotInterruption, e.detail.instance("instance-id"))
	n.Action = e.detail.action()
	n.Deadline = e.time.Add(interruption.SpotNotice)
	if n.Action == interruption.ActionHibernate { // begins at once, without the two minutes
		n.Deadline = e.received
	}
	return e.one(n)
}

// parseCapacityReservation reads an "EC2 Capacity Reservation Instance Interruption
// Warning", the only one of EC2's that says exactly when.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/interruptible-capacity-reservations.html
func parseCapacityReservation(e *envelope) ([]interruption.Notice, error) {
	n := e.notice(interruption.CapacityReservationInterruption, e.detail.instance("instance-id"))
	n.Action = e.detail.action()
	n.Deadline = e.detail.time("instance-termination-time", e.received.Add(-maxPast), e.received.Add(maxCapacityLead), time.RFC3339)
	return e.one(n)
}

// parseRebalance reads an "EC2 Instance Rebalance Recommendation", which has no
// deadline.
func parseRebalance(e *envelope) ([]interruption.Notice, error) {
	return e.one(e.notice(interruption.RebalanceRecommendation, e.detail.instance("instance-id")))
}

// parseStateChange reads an "EC2 Instance State-change Notification". What it reports has
// begun, or is over, at the time of the message: that is the deadline. An instance that
// starts needs no action.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html
func parseStateChange(e *envelope) ([]interruption.Notice, error) {
	n := e.notice(interruption.StateChange, e.detail.instance("instance-id"))
	n.Action, n.Deadline = e.detail.text("state"), n.Noticed
	switch n.Action {
	case interruption.ActionStopping, interruption.ActionShuttingDown, interruption.ActionStopped, interruption.ActionTerminated:
	case "pending", "running":
		return nil, e.detail.err
	default:
		e.detail.fail(unsupported(rejectState, "state %.64q", n.Action))
	}
	return e.one(n)
}

// The transitions of a group's instances that a hook can be for.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
const (
	transitionTerminating = "autoscaling:EC2_INSTANCE_TERMINATING"
	transitionLaunching   = "autoscaling:EC2_INSTANCE_LAUNCHING"

	// testNotification is what a group sends when it is given a hook with a target, to see
	// whether it can.
	testNotification = "autoscaling:TEST_NOTIFICATION"
)

// transitions says which transition each detail-type is about.
var transitions = map[string]string{
	"EC2 Instance-terminate Lifecycle Action": transitionTerminating,
	"EC2 Instance-launch Lifecycle Action":    transitionLaunching,
}

// parseLifecycle reads an "EC2 Instance-terminate Lifecycle Action" or its counterpart
// for instances that are launched. It has no deadline: the hook's settings say how long the
// group waits.
func parseLifecycle(e *envelope) ([]interruption.Notice, error) {
	if is, want := e.detail.text("LifecycleTransition"), transitions[e.kind]; is != want {
		e.detail.fail(malformed(rejectState, "LifecycleTransition %.128q, want %s in detail-type %q", is, want, e.kind))
	}
	return hookNotice(e)
}

// isDirectLifecycle reports whether the message comes from an Auto Scaling group
// itself, to the queue or by way of an SNS topic: the fields of a detail with no
// envelope.
func isDirectLifecycle(o object) bool { return o.has("LifecycleTransition") || o.has("Event") }

// parseDirectLifecycle reads what a group sends without EventBridge. The action's token is
// the event's id, as it is the same each time that the message comes. Where there is none,
// the request's id is.
func parseDirectLifecycle(o object, received time.Time) ([]interruption.Notice, error) {
	if o.has("Event") {
		if event := o.text("Event"); event != testNotification {
			// The group's notifications of what it has done, such as
			// autoscaling:EC2_INSTANCE_TERMINATE, which belong on other topics.
			o.fail(unsupported(rejectDetailType, "notification %.128q of an Auto Scaling group", event))
		}
		return nil, o.err
	}
	if t := o.text("LifecycleTransition"); t != transitionTerminating && t != transitionLaunching {
		o.fail(unsupported(rejectState, "LifecycleTransition %.128q", t))
	}
	e := envelope{time: o.announced("Time", received), received: received}
	if o.has("LifecycleActionToken") {
		e.id = o.id("LifecycleActionToken")
	} else {
		e.id = o.id("RequestId")
	}
	e.detail = o
	return hookNotice(&e)
}

// hookNotice makes the notice of a hook, of which the transition has been checked.
func hookNotice(e *envelope) ([]interruption.Notice, error) {
	d := &e.detail
	n := e.notice(interruption.InstanceTerminating, d.instance("EC2InstanceId"))
	n.Hook = &interruption.Hook{
		Group: d.name("AutoScalingGroupName"), Name: d.name("LifecycleHookName"), Since: n.Noticed,
		Launching: d.text("LifecycleTransition") == transitionLaunching,
	}
	if d.has("LifecycleActionToken") { // without one the hook is completed by the instance
		n.Hook.Token = d.id("LifecycleActionToken")
	}
	if !n.Hook.Launching {
		n.Action = interruption.ActionTerminate
	}
	return e.one(n)
}
