package queue

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"spot-handler/handler/interruption"
)

const (
	// maxBody is the largest message that SQS takes.
	maxBody = 1 << 20

	// maxEventID is ample for the UUIDs that EventBridge makes, and small enough for
	// the record on the Node.
	maxEventID = 128
)

// An envelope is what EventBridge wraps around a message of any kind. "resources"
// is not read: it is an array of ARNs in most kinds and a string in one, and says
// nothing that the detail does not say better.
type envelope struct {
	id     string
	kind   string // "detail-type"
	source string
	time   time.Time
	detail json.RawMessage
}

// A format is one detail-type that is understood. Rules of an event bus can route
// anybody's messages: a detail-type counts only from the service that owns it.
type format struct {
	source string
	parse  func(e envelope, received time.Time) ([]interruption.Notice, error)
}

var formats = map[string]format{
	"EC2 Spot Instance Interruption Warning":                 {"aws.ec2", parseSpotInterruption},
	"EC2 Instance Rebalance Recommendation":                  {"aws.ec2", parseRebalance},
	"EC2 Capacity Reservation Instance Interruption Warning": {"aws.ec2", parseCapacityReservation},
	"EC2 Instance State-change Notification":                 {"aws.ec2", parseStateChange},
	"AWS Health Event":                                       {"aws.health", parseScheduledEvent},
	"EC2 Instance-terminate Lifecycle Action":                {"aws.autoscaling", parseLifecycle},
	"EC2 Instance-launch Lifecycle Action":                   {"aws.autoscaling", parseLifecycle},
}

// parse returns the notices of a message: none where it is understood and there is
// nothing to do about it. An error is a *rejection; beside notices it says what part of
// the message cannot be used.
func parse(body string, received time.Time) ([]interruption.Notice, error) {
	fields, err := parseBody(body)
	if err != nil {
		return nil, err
	}
	if isSNS(fields) {
		if fields, err = unwrapSNS(fields); err != nil {
			return nil, err
		}
	}
	if _, enveloped := fields["detail-type"]; !enveloped && isDirectLifecycle(fields) {
		return parseDirectLifecycle(fields, received)
	}
	return parseEnvelope(fields, received)
}

func parseBody(body string) (map[string]json.RawMessage, error) {
	if len(body) > maxBody {
		return nil, malformed(rejectTooLarge, "%d bytes, want at most %d", len(body), maxBody)
	}
	if !utf8.ValidString(body) {
		return nil, malformed(rejectJSON, "not UTF-8")
	}
	fields, err := parseObject([]byte(body))
	if err != nil {
		return nil, malformed(rejectJSON, "%v", err)
	}
	return fields, nil
}

func parseEnvelope(fields map[string]json.RawMessage, received time.Time) ([]interruption.Notice, error) {
	// The kind comes first: if the message would not be used anyway, nobody cares what else
	// is wrong with it.
	var e envelope
	var err error
	if e.kind, err = textField(fields, "detail-type"); err != nil {
		return nil, err
	}
	if e.source, err = textField(fields, "source"); err != nil {
		return nil, err
	}
	f, known := formats[e.kind]
	switch {
	case !known:
		return nil, unsupported(rejectDetailType, "detail-type %.128q", e.kind)
	case e.source != f.source:
		return nil, unsupported(rejectSource, "detail-type %q from source %.128q, want %q", e.kind, e.source, f.source)
	}

	if e.id, err = textField(fields, "id"); err != nil {
		return nil, err
	}
	if !validEventID(e.id) {
		return nil, malformed(rejectField, "id %.128q", e.id)
	}
	if e.time, err = announcedAt(fields, "time", received); err != nil {
		return nil, err
	}
	e.detail = fields["detail"]
	return f.parse(e, received)
}

// detailFields returns the fields of the detail, which has to be an object.
func (e envelope) detailFields() (map[string]json.RawMessage, error) {
	if e.detail == nil {
		return nil, malformed(rejectField, "no detail")
	}
	fields, err := parseObject(e.detail)
	if err != nil {
		return nil, malformed(rejectField, "detail: %v", err)
	}
	return fields, nil
}

// instanceDetail returns the fields of a detail about one instance, as EC2's own are.
func (e envelope) instanceDetail() (detail map[string]json.RawMessage, instance string, err error) {
	if detail, err = e.detailFields(); err != nil {
		return nil, "", err
	}
	instance, err = instanceField(detail, "instance-id")
	return detail, instance, err
}

// notice has what every kind takes from the envelope.
func (e envelope) notice(kind interruption.Kind, instance string, received time.Time) interruption.Notice {
	return interruption.Notice{
		Kind:       kind,
		Source:     interruption.Queue,
		EventID:    e.id,
		InstanceID: instance,
		Noticed:    earlier(e.time, received), // clocks differ by a second or so
		Received:   received,
	}
}
