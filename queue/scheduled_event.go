package queue

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
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
func parseScheduledEvent(e *envelope) ([]interruption.Notice, error) {
	d := &e.detail
	if service, category := d.text("service"), d.text("eventTypeCategory"); d.err != nil || service != healthService || category != healthCategory {
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
	o := objectOf(raw, "affectedEntities")
	value := o.text("entityValue")
	if strings.HasPrefix(value, "arn:") {
		_, id, found := strings.Cut(value, ":instance/")
		if !found {
			return "", false, nil
		}
		value = id
	}
	if !validInstanceID(value) {
		o.fail(malformed(rejectInstanceID, "entityValue %.64q", value))
	}
	if o.err != nil {
		return "", false, o.err
	}
	return value, o.has("status") && strings.EqualFold(o.text("status"), "resolved"), nil
}
