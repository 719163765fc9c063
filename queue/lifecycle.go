package queue

import (
	"encoding/json"
	"strings"
	"time"
	"unicode"

	"spot-handler/handler/interruption"
)

// The transitions of a group's instances that a hook can be for.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html
const (
	transitionTerminating = "autoscaling:EC2_INSTANCE_TERMINATING"
	transitionLaunching   = "autoscaling:EC2_INSTANCE_LAUNCHING"

	// testNotification is what a group sends when it is given a hook with a target, to see
	// whether it can.
	testNotification = "autoscaling:TEST_NOTIFICATION"

	// maxHookText is the longest name that Auto Scaling lets a group or a hook have.
	maxHookText = 255
)

// transitions says which transition each detail-type is about.
var transitions = map[string]string{
	"EC2 Instance-terminate Lifecycle Action": transitionTerminating,
	"EC2 Instance-launch Lifecycle Action":    transitionLaunching,
}

// parseLifecycle reads an "EC2 Instance-terminate Lifecycle Action" or its counterpart
// for instances that are launched. It has no deadline: the hook's settings say how long the
// group waits.
func parseLifecycle(e envelope, received time.Time) ([]interruption.Notice, error) {
	detail, err := e.detailFields()
	if err != nil {
		return nil, err
	}
	transition, err := textField(detail, "LifecycleTransition")
	if err != nil {
		return nil, err
	}
	if want := transitions[e.kind]; transition != want {
		return nil, malformed(rejectState, "LifecycleTransition %.128q, want %s in detail-type %q", transition, want, e.kind)
	}
	return lifecycleNotices(e, detail, received)
}

// isDirectLifecycle reports whether the message comes from an Auto Scaling group
// itself, to the queue or by way of an SNS topic: the fields of a detail with no
// envelope.
func isDirectLifecycle(fields map[string]json.RawMessage) bool {
	_, hook := fields["LifecycleTransition"]
	_, notification := fields["Event"]
	return hook || notification
}

// parseDirectLifecycle reads what a group sends without EventBridge. The action's token is
// the event's id, as it is the same each time that the message comes. Where there is none,
// the request's id is.
func parseDirectLifecycle(fields map[string]json.RawMessage, received time.Time) ([]interruption.Notice, error) {
	if _, notification := fields["Event"]; notification {
		event, err := textField(fields, "Event")
		switch {
		case err != nil:
			return nil, err
		case event == testNotification:
			return nil, nil
		}
		// The group's notifications of what it has done, such as
		// autoscaling:EC2_INSTANCE_TERMINATE, which belong on other topics.
		return nil, unsupported(rejectDetailType, "notification %.128q of an Auto Scaling group", event)
	}
	transition, err := textField(fields, "LifecycleTransition")
	if err != nil {
		return nil, err
	}
	if transition != transitionTerminating && transition != transitionLaunching {
		return nil, unsupported(rejectState, "LifecycleTransition %.128q", transition)
	}
	e := envelope{}
	if e.time, err = announcedAt(fields, "Time", received); err != nil {
		return nil, err
	}
	idField := "LifecycleActionToken"
	if _, has := fields[idField]; !has {
		idField = "RequestId"
	}
	if e.id, err = textField(fields, idField); err != nil {
		return nil, err
	}
	if !validEventID(e.id) {
		return nil, malformed(rejectField, "%s %.128q", idField, e.id)
	}
	return lifecycleNotices(e, fields, received)
}

// lifecycleNotices makes the notice of a hook, of which the transition has been checked.
func lifecycleNotices(e envelope, fields map[string]json.RawMessage, received time.Time) ([]interruption.Notice, error) {
	instance, err := instanceField(fields, "EC2InstanceId")
	if err != nil {
		return nil, err
	}
	hook := interruption.Hook{}
	if hook.Group, err = hookText(fields, "AutoScalingGroupName"); err != nil {
		return nil, err
	}
	if hook.Name, err = hookText(fields, "LifecycleHookName"); err != nil {
		return nil, err
	}
	// Without a token the hook is completed by the instance.
	if _, has := fields["LifecycleActionToken"]; has {
		if hook.Token, err = textField(fields, "LifecycleActionToken"); err != nil {
			return nil, err
		}
		if !validEventID(hook.Token) {
			return nil, malformed(rejectField, "LifecycleActionToken %.128q", hook.Token)
		}
	}
	transition, err := textField(fields, "LifecycleTransition")
	if err != nil {
		return nil, err
	}
	hook.Launching = transition == transitionLaunching
	hook.Since = earlier(e.time, received)

	n := e.notice(interruption.InstanceTerminating, instance, received)
	n.Hook = &hook
	if !hook.Launching {
		n.Action = interruption.ActionTerminate
	}
	return []interruption.Notice{n}, nil
}

// hookText returns the name of a group or of a hook. It is kept on the Node and given
// back to Auto Scaling: nothing in it must be invisible.
func hookText(fields map[string]json.RawMessage, name string) (string, error) {
	text, err := textField(fields, name)
	if err != nil {
		return "", err
	}
	if len(text) > maxHookText || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return "", malformed(rejectField, "%s %.128q", name, text)
	}
	return text, nil
}
