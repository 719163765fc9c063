package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"spot-handler/handler/interruption"
)

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
func parseScheduledEvent(e envelope, received time.Time) ([]interruption.Notice, error) {
	detail, err := e.detailFields()
	if err != nil {
		return nil, err
	}
	service, err := textField(detail, "service")
	if err != nil {
		return nil, err
	}
	category, err := textField(detail, "eventTypeCategory")
	if err != nil {
		return nil, err
	}
	if service != healthService || category != healthCategory {
		return nil, nil
	}

	n := e.notice(interruption.ScheduledEvent, "", received)
	arn, err := textField(detail, "eventArn")
	if err != nil {
		return nil, err
	}
	if n.EventID, err = healthEventID(arn); err != nil {
		return nil, err
	}
	code, err := textField(detail, "eventTypeCode")
	if err != nil {
		return nil, err
	}
	n.Action = healthAction(code)
	if n.Withdrawn, err = healthOver(detail, code); err != nil {
		return nil, err
	}
	// To take an event back its name is enough.
	n.Deadline, err = timeField(detail, "startTime", received.Add(-maxWindow), received.Add(maxWindow), healthTime...)
	if err != nil && !n.Withdrawn {
		return nil, err
	}
	return healthNotices(n, detail)
}

// healthEventID is the event's ARN: unlike the envelope's id it is the same in all
// messages about the event.
func healthEventID(arn string) (string, error) {
	if len(arn) > maxEventARN {
		sum := sha256.Sum256([]byte(arn))
		return "arn-sha256:" + hex.EncodeToString(sum[:]), nil
	}
	if !printable(arn) {
		return "", malformed(rejectField, "eventArn %.128q", arn)
	}
	return arn, nil
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

// overWords tell that an event is over: its description begins with one of them in
// brackets, or its type ends with one.
var overWords = []string{"canceled", "cancelled", "completed"}

// healthOver reports whether the event is over for all of its instances. Health closes an
// event that has happened and one that was canceled alike.
func healthOver(detail map[string]json.RawMessage, code string) (bool, error) {
	status, err := textField(detail, "statusCode")
	if err != nil {
		return false, err
	}
	if strings.EqualFold(status, "closed") {
		return true, nil
	}
	text := strings.ToLower(strings.TrimSpace(healthDescription(detail)))
	for _, word := range overWords {
		if strings.HasSuffix(strings.ToLower(code), "_"+word) || strings.HasPrefix(text, "["+word+"]") {
			return true, nil
		}
	}
	return false, nil
}

// healthDescription is the description in its first language; empty where none can be read,
// as nothing depends on it.
func healthDescription(detail map[string]json.RawMessage) string {
	var list []struct {
		Text string `json:"latestDescription"`
	}
	if err := json.Unmarshal(detail["eventDescription"], &list); err != nil || len(list) == 0 {
		return ""
	}
	return list[0].Text
}

// healthNotices makes a copy of the notice for each affected instance. It leaves out
// entities that cannot be read, and returns the first one's error beside the notices of the
// others.
func healthNotices(n interruption.Notice, detail map[string]json.RawMessage) ([]interruption.Notice, error) {
	raw, ok := detail["affectedEntities"]
	if !ok {
		return nil, nil // a public event, not about anybody's instances
	}
	var entities []json.RawMessage
	if err := json.Unmarshal(raw, &entities); err != nil || entities == nil {
		return nil, malformed(rejectField, "affectedEntities is not an array")
	}
	if len(entities) > maxEntities {
		return nil, malformed(rejectTooLarge, "%d affected entities, want at most %d", len(entities), maxEntities)
	}
	var notices []interruption.Notice
	var bad error
	known := make(map[string]struct{}, len(entities))
	for _, entity := range entities {
		instance, over, err := healthEntity(entity)
		if err != nil {
			if bad == nil {
				bad = err
			}
			continue
		}
		if _, twice := known[instance]; twice || instance == "" {
			continue
		}
		known[instance] = struct{}{}
		one := n
		one.InstanceID, one.Withdrawn = instance, n.Withdrawn || over
		notices = append(notices, one)
	}
	return notices, bad
}

// healthEntity returns the instance of an entity, by its id or its ARN, and whether the
// event is over for it alone. There is no instance where the entity is something else, such
// as a volume.
func healthEntity(raw json.RawMessage) (instance string, over bool, err error) {
	fields, err := parseObject(raw)
	if err != nil {
		return "", false, malformed(rejectField, "affectedEntities: %v", err)
	}
	value, err := textField(fields, "entityValue")
	if err != nil {
		return "", false, err
	}
	if strings.HasPrefix(value, "arn:") {
		_, id, found := strings.Cut(value, ":instance/")
		if !found {
			return "", false, nil
		}
		value = id
	}
	if !validInstanceID(value) {
		return "", false, malformed(rejectInstanceID, "entityValue %.64q", value)
	}
	if _, has := fields["status"]; has {
		status, err := textField(fields, "status")
		return value, err == nil && strings.EqualFold(status, "resolved"), nil
	}
	return value, false, nil
}
