package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
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

// parseCapacityBlock reads a "Capacity Block Expiration Warning", which names a reservation and its end. EC2
// terminates the instances half an hour before that. If it warns of an earlier time, as for UltraServers,
// or the end cannot be read, whose form is not documented, ten minutes from the warning count.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html
func parseCapacityBlock(e *envelope) ([]interruption.Notice, error) {
	id := e.detail.text("capacity-reservation-id")
	if !reservationID.MatchString(id) {
		e.detail.fail(malformed(rejectField, "capacity-reservation-id %.64q", id))
	}
	n := e.notice(interruption.CapacityBlockExpiration, id)
	n.Action, n.Reservation = interruption.ActionTerminate, id
	n.Deadline = n.Noticed.Add(interruption.CapacityBlockNotice)
	end := object{fields: e.detail.fields}
	ends := end.time("end-date", e.received.Add(-maxPast), e.received.Add(maxCapacityLead), time.RFC3339)
	if end.err == nil {
		n.Deadline = interruption.Earlier(n.Deadline, ends.Add(-interruption.CapacityBlockCleared))
	}
	return e.one(n)
}

var reservationID = regexp.MustCompile(`^cr-[0-9a-f]{8,17}$`)

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

// parseLifecycle reads an "EC2 Instance-terminate Lifecycle Action" or its counterpart
// for launched instances; want is the transition that it has to be about. It has no deadline: the
// hook's settings say how long the group waits.
func parseLifecycle(want string) func(*envelope) ([]interruption.Notice, error) {
	return func(e *envelope) ([]interruption.Notice, error) {
		if is := e.detail.text("LifecycleTransition"); is != want {
			e.detail.fail(malformed(rejectState, "LifecycleTransition %.128q, want %s in detail-type %q", is, want, e.kind))
		}
		return hookNotice(e)
	}
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

const (
	// A Health event that announces something for instances has these. The rule lets no
	// other through.
	healthService  = "EC2"
	healthCategory = "scheduledChange"

	// maxEntities is more than fit into the 256 KB of EventBridge's messages. Health spreads
	// a larger event over several messages.
	// https://docs.aws.amazon.com/health/latest/ug/pagnation-of-health-events.html
	maxEntities = 8192

	// maxEventARN is the longest ARN of an event that the record on each Node keeps as it
	// is. ARNs are about 170 bytes long, and can be 1600.
	maxEventARN = 256

	// maxWindow is how far from now a window may begin. EC2 announces one some weeks
	// ahead, a retirement some months.
	maxWindow = 400 * 24 * time.Hour
)

// healthTime are the forms of a Health event's times: one digit or two for the day, and the
// zone as literal text, so no other zone passes. Some senders write RFC 3339.
var healthTime = []string{"Mon, 2 Jan 2006 15:04:05 GMT", time.RFC3339}

// parseScheduledEvent reads an "AWS Health Event": one message about many instances, with
// one notice for each. A large event comes in pages, which are messages of their own with
// the same ARN; they need not be put together.
//
// The window's start is the deadline. Of the description only the word in brackets counts,
// with which EC2 begins that of an event which is canceled or over.
// https://docs.aws.amazon.com/health/latest/ug/aws-health-events-eventbridge-schema.html
func parseScheduledEvent(e *envelope) ([]interruption.Notice, error) {
	d := &e.detail
	service, category := d.text("service"), d.text("eventTypeCategory")
	if d.err != nil || service != healthService || category != healthCategory {
		return nil, d.err
	}
	n := e.notice(interruption.ScheduledEvent, "")
	n.EventID = healthEventID(d)
	code := d.text("eventTypeCode")
	n.Action = healthAction(code)
	n.Withdrawn = healthOver(d, code)
	start := object{fields: d.fields}
	n.Deadline = start.time("startTime", e.received.Add(-maxWindow), e.received.Add(maxWindow), healthTime...)
	if !n.Withdrawn { // to take an event back its name is enough
		d.fail(start.err)
	}
	if d.err != nil {
		return nil, d.err
	}
	return healthNotices(n, d)
}

// healthEventID is the event's ARN: unlike the envelope's id it is the same in all
// messages about the event.
func healthEventID(detail *object) string {
	arn := detail.text("eventArn")
	if len(arn) > maxEventARN {
		sum := sha256.Sum256([]byte(arn))
		return "arn-sha256:" + hex.EncodeToString(sum[:])
	}
	if !printable(arn) {
		detail.fail(malformed(rejectField, "eventArn %.128q", arn))
	}
	return arn
}

// healthAction sorts the types of scheduled changes, such as
// AWS_EC2_PERSISTENT_INSTANCE_RETIREMENT_SCHEDULED. AWS adds types at times: an unknown one
// counts as maintenance.
func healthAction(code string) string {
	switch {
	case strings.Contains(code, "RETIREMENT"):
		return interruption.ActionRetirement
	case strings.Contains(code, "INSTANCE_STOP"):
		return interruption.ActionStop
	case strings.Contains(code, "REBOOT"):
		return interruption.ActionReboot
	}
	return interruption.ActionMaintenance
}

// overWords say that an event is over: its description begins with one of them in
// brackets, or its type ends with one.
var overWords = []string{"canceled", "cancelled", "completed"}

// healthOver reports whether the event is over for all of its instances. Health closes an
// event that has happened and one that was canceled alike.
func healthOver(detail *object, code string) bool {
	if strings.EqualFold(detail.text("statusCode"), "closed") {
		return true
	}
	text := strings.ToLower(strings.TrimSpace(healthDescription(detail)))
	return slices.ContainsFunc(overWords, func(word string) bool {
		return strings.HasSuffix(strings.ToLower(code), "_"+word) || strings.HasPrefix(text, "["+word+"]")
	})
}

// healthDescription is the description in its first language; empty where none can be read,
// as nothing depends on it.
func healthDescription(detail *object) string {
	var list []struct {
		Text string `json:"latestDescription"`
	}
	if err := json.Unmarshal(detail.fields["eventDescription"], &list); err != nil || len(list) == 0 {
		return ""
	}
	return list[0].Text
}

// healthNotices makes a copy of the notice for each affected instance. It leaves out
// entities that cannot be read, and returns the first one's error beside the notices of the
// others.
func healthNotices(n interruption.Notice, detail *object) ([]interruption.Notice, error) {
	if !detail.has("affectedEntities") {
		return nil, nil // a public event, not about anybody's instances
	}
	var entities []json.RawMessage
	if err := json.Unmarshal(detail.fields["affectedEntities"], &entities); err != nil || entities == nil {
		return nil, malformed(rejectField, "affectedEntities is not an array")
	}
	if len(entities) > maxEntities {
		return nil, malformed(rejectTooLarge, "%d affected entities, want at most %d", len(entities), maxEntities)
	}
	var notices []interruption.Notice
	var bad error
	known := make(map[string]struct{}, len(entities))
	for _, entity := range entities {
		affected, err := healthEntity(entity)
		if err != nil {
			if bad == nil {
				bad = err
			}
			continue
		}
		if _, twice := known[affected.instance]; twice || affected.instance == "" {
			continue
		}
		known[affected.instance] = struct{}{}
		one := n
		one.InstanceID, one.Withdrawn = affected.instance, n.Withdrawn || affected.over
		notices = append(notices, one)
	}
	return notices, bad
}

// affected is an entity of an event.
type affected struct {
	instance string // empty if it is something else, such as a volume
	over     bool   // the event is over for it alone
}

// healthEntity reads an entity, which is named by its id or its ARN.
func healthEntity(raw json.RawMessage) (affected, error) {
	o := objectOf(raw, "affectedEntities")
	value := o.text("entityValue")
	if strings.HasPrefix(value, "arn:") {
		_, id, found := strings.Cut(value, ":instance/")
		if !found {
			return affected{}, nil
		}
		value = id
	}
	if !validInstanceID(value) {
		o.fail(malformed(rejectInstanceID, "entityValue %.64q", value))
	}
	if o.err != nil {
		return affected{}, o.err
	}
	return affected{value, o.has("status") && strings.EqualFold(o.text("status"), "resolved")}, nil
}
