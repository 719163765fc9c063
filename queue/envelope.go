package queue

import (
	"time"
	"unicode/utf8"

	"spot-handler/handler/interruption"
)

// maxBody is the largest message that SQS takes.
const maxBody = 1 << 20

// An envelope is what EventBridge wraps around a message of any kind. "resources"
// is not read: it is an array of ARNs in most kinds and a string in one, and says
// nothing that the detail does not say better.
type envelope struct {
	id       string
	kind     string // "detail-type"
	time     time.Time
	received time.Time // by us
	detail   object
}

// A format is one detail-type that is understood. Rules of an event bus can route
// anybody's messages: a detail-type counts only from the service that owns it.
type format struct {
	source string
	parse  func(e *envelope) ([]interruption.Notice, error)
}

var formats = map[string]format{
	"EC2 Spot Instance Interruption Warning":                 {"aws.ec2", parseSpotInterruption},
	"EC2 Instance Rebalance Recommendation":                  {"aws.ec2", parseRebalance},
	"EC2 Capacity Reservation Instance Interruption Warning": {"aws.ec2", parseCapacityReservation},
	"EC2 Instance State-change Notification":                 {"aws.ec2", parseStateChange},
	"AWS Health Event":                                       {"aws.health", parseScheduledEvent},
	"EC2 Instance-terminate Lifecycle Action":                {"aws.autoscaling", parseLifecycle(transitionTerminating)},
	"EC2 Instance-launch Lifecycle Action":                   {"aws.autoscaling", parseLifecycle(transitionLaunching)},
}

// parse returns the notices of a message: none where it is understood and there is
// nothing to do about it. An error is a *rejection; beside notices it says what part of
// the message cannot be used.
func parse(body string, received time.Time) ([]interruption.Notice, error) {
	o := parseBody(body)
	if isSNS(o) {
		o = unwrapSNS(o)
	}
	switch {
	case o.err != nil:
		return nil, o.err
	case !o.has("detail-type") && isDirectLifecycle(o):
		return parseDirectLifecycle(o, received)
	}
	return parseEnvelope(o, received)
}

func parseBody(body string) (o object) {
	if len(body) > maxBody {
		o.fail(malformed(rejectTooLarge, "%d bytes, want at most %d", len(body), maxBody))
		return o
	}
	if !utf8.ValidString(body) {
		o.fail(malformed(rejectJSON, "not UTF-8"))
		return o
	}
	fields, err := parseObject([]byte(body))
	if err != nil {
		o.fail(malformed(rejectJSON, "%v", err))
	}
	o.fields = fields
	return o
}

// isSNS reports whether an SNS topic has wrapped the message: it then has a type, and
// what was published is one of its fields, as text. A topic with raw message delivery
// leaves the message as it is.
// https://docs.aws.amazon.com/sns/latest/dg/sns-message-and-json-formats.html
func isSNS(o object) bool { return o.has("Type") && o.has("Message") && o.has("TopicArn") }

// unwrapSNS returns the message that was published. It unwraps once: no topic
// subscribes to another, so nobody wraps a message twice.
func unwrapSNS(o object) object {
	if kind := o.text("Type"); kind != "Notification" { // such as a subscription that waits to be confirmed
		o.fail(unsupported(rejectDetailType, "SNS message of type %.64q", kind))
	}
	text := o.text("Message")
	if o.err != nil {
		return o
	}
	inner := parseBody(text)
	if isSNS(inner) {
		inner.fail(malformed(rejectJSON, "wrapped by SNS twice"))
	}
	return inner
}

func parseEnvelope(o object, received time.Time) ([]interruption.Notice, error) {
	// The kind comes first: if the message would not be used anyway, nobody cares what else
	// is wrong with it.
	e := envelope{kind: o.text("detail-type"), received: received}
	source := o.text("source")
	f, known := formats[e.kind]
	switch {
	case !known:
		o.fail(unsupported(rejectDetailType, "detail-type %.128q", e.kind))
	case source != f.source:
		o.fail(unsupported(rejectSource, "detail-type %q from source %.128q, want %q", e.kind, source, f.source))
	}
	e.id = o.id("id")
	e.time = o.announced("time", received)
	if o.err != nil {
		return nil, o.err
	}
	e.detail = o.object("detail")
	return f.parse(&e)
}

// notice has what every kind takes from the envelope.
func (e *envelope) notice(kind interruption.Kind, instance string) interruption.Notice {
	return interruption.Notice{
		Kind:       kind,
		Source:     interruption.Queue,
		EventID:    e.id,
		InstanceID: instance,
		Noticed:    interruption.Earlier(e.time, e.received), // clocks differ by a second or so
		Received:   e.received,
	}
}

// one is the only notice of a message, if its detail could be read.
func (e *envelope) one(n interruption.Notice) ([]interruption.Notice, error) {
	if e.detail.err != nil {
		return nil, e.detail.err
	}
	return []interruption.Notice{n}, nil
}
