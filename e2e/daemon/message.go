package daemon

import (
	"encoding/json"
	"time"
)

// The detail types of EventBridge.
const (
	SpotInterruption    = "EC2 Spot Instance Interruption Warning"
	Rebalance           = "EC2 Instance Rebalance Recommendation"
	CapacityReservation = "EC2 Capacity Reservation Instance Interruption Warning"
	StateChange         = "EC2 Instance State-change Notification"
	HealthEvent         = "AWS Health Event"
	TerminateHook       = "EC2 Instance-terminate Lifecycle Action"
	LaunchHook          = "EC2 Instance-launch Lifecycle Action"
)

// EventBridge is the body that EventBridge puts in the queue for one instance, for kinds
// that say nothing beyond an action.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html#ec2-spot-instance-interruption-warning-event
func EventBridge(detailType, eventID, instanceID string, at time.Time) string {
	detail := map[string]any{"instance-id": instanceID}
	if detailType == SpotInterruption {
		detail["instance-action"] = "terminate"
	}
	return Envelope("aws.ec2", detailType, eventID, at, []string{"arn:aws:ec2:eu-west-1a:instance/" + instanceID}, detail)
}

// Envelope is what EventBridge wraps around any detail. The resources are a list in most
// kinds, and a string in one.
func Envelope(source, detailType, eventID string, at time.Time, resources, detail any) string {
	return body(map[string]any{
		"version": "0", "id": eventID, "detail-type": detailType, "source": source, "account": "123456789012",
		"time": at.UTC().Format(time.RFC3339), "region": "eu-west-1", "resources": resources, "detail": detail,
	})
}

// CapacityReservationInterruption says when an instance ends because its capacity
// reservation is taken back.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/interruptible-capacity-reservations.html
func CapacityReservationInterruption(eventID, instanceID string, at, ends time.Time) string {
	return Envelope("aws.ec2", CapacityReservation, eventID, at, "arn:aws:ec2:eu-west-1:123456789012:instance/"+instanceID, map[string]any{
		"instance-id": instanceID, "instance-action": "terminate", "instance-termination-time": ends.UTC().Format(time.RFC3339), "azId": "euw1-az1",
	})
}

// InstanceState says that an instance is now in a state, such as stopping.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html
func InstanceState(state, eventID, instanceID string, at time.Time) string {
	return Envelope("aws.ec2", StateChange, eventID, at, []string{"arn:aws:ec2:eu-west-1:123456789012:instance/" + instanceID}, map[string]any{
		"instance-id": instanceID, "state": state,
	})
}

// Health is a scheduled change as AWS Health announces it.
type Health struct {
	EventID string // of the message
	ARN     string // of the event, in all messages about it
	Code    string // such as AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED
	Status  string // upcoming, open or closed
	Start   time.Time

	Instances   []string
	Resolved    []string // those of the instances for which it is over
	Description string
}

// ScheduledChange is the message of a Health event, about all of its instances.
// https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html
func ScheduledChange(h Health, at time.Time) string {
	resolved := map[string]bool{}
	for _, id := range h.Resolved {
		resolved[id] = true
	}
	stamp := func(t time.Time) string { return t.UTC().Format("Mon, 2 Jan 2006 15:04:05 GMT") }
	var entities []map[string]string
	for _, id := range h.Instances {
		status := "PENDING"
		if resolved[id] {
			status = "RESOLVED"
		}
		entities = append(entities, map[string]string{"entityValue": id, "lastUpdatedTime": stamp(at), "status": status})
	}
	return Envelope("aws.health", HealthEvent, h.EventID, at, h.Instances, map[string]any{
		"eventArn": h.ARN, "service": "EC2", "eventTypeCode": h.Code, "eventTypeCategory": "scheduledChange",
		"eventScopeCode": "ACCOUNT_SPECIFIC", "communicationId": "0123456789abcdef-1", "eventRegion": "eu-west-1",
		"startTime": stamp(h.Start), "lastUpdatedTime": stamp(at), "statusCode": h.Status,
		"eventDescription": []map[string]string{{"language": "en_US", "latestDescription": h.Description}},
		"affectedEntities": entities, "affectedAccount": "123456789012", "page": "1", "totalPages": "1", "backupEvent": "false",
	})
}

// A Hook is a lifecycle hook of an Auto Scaling group that waits for an instance.
type Hook struct {
	Group, Name, Token, Instance string
	Launching                    bool
}

func (h Hook) fields() map[string]any {
	transition := "autoscaling:EC2_INSTANCE_TERMINATING"
	if h.Launching {
		transition = "autoscaling:EC2_INSTANCE_LAUNCHING"
	}
	return map[string]any{
		"LifecycleActionToken": h.Token, "AutoScalingGroupName": h.Group, "LifecycleHookName": h.Name,
		"EC2InstanceId": h.Instance, "LifecycleTransition": transition, "NotificationMetadata": "",
	}
}

// LifecycleAction is what a hook sends through EventBridge.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-event-reference.html
func LifecycleAction(h Hook, eventID string, at time.Time) string {
	detailType := TerminateHook
	if h.Launching {
		detailType = LaunchHook
	}
	return Envelope("aws.autoscaling", detailType, eventID, at, []string{}, h.fields())
}

// DirectLifecycleAction is what a hook sends if it has a target of its own.
// https://docs.aws.amazon.com/autoscaling/ec2/userguide/prepare-for-lifecycle-notifications.html
func DirectLifecycleAction(h Hook, at time.Time) string {
	fields := h.fields()
	fields["Service"], fields["AccountId"], fields["RequestId"] = "AWS Auto Scaling", "123456789012", "request-of-"+h.Token
	fields["Time"] = at.UTC().Format("2006-01-02T15:04:05.000Z")
	return body(fields)
}

// TestNotification is what a group sends when it gets such a hook.
func TestNotification(group string, at time.Time) string {
	return body(map[string]any{
		"Service": "AWS Auto Scaling", "AccountId": "123456789012", "RequestId": "request-of-test", "AutoScalingGroupName": group,
		"Event": "autoscaling:TEST_NOTIFICATION", "Time": at.UTC().Format("2006-01-02T15:04:05.000Z"),
	})
}

// SNS is a message as a topic passes it on.
// https://docs.aws.amazon.com/sns/latest/dg/sns-message-and-json-formats.html
func SNS(message string, at time.Time) string {
	return body(map[string]any{
		"Type": "Notification", "MessageId": "of-sns", "TopicArn": "arn:aws:sns:eu-west-1:123456789012:hooks", "Message": message,
		"Timestamp": at.UTC().Format("2006-01-02T15:04:05.000Z"), "SignatureVersion": "1", "Signature": "none",
	})
}

func body(v map[string]any) string {
	text, err := json.Marshal(v)
	if err != nil { // strings, lists and maps of them: cannot happen
		panic(err)
	}
	return string(text)
}
