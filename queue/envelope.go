package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
	strictjson "sigs.k8s.io/json"

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
	"Capacity Block Expiration Warning":                      {"aws.ec2", parseCapacityBlock},
	"Capacity Block Reservation Expiration Warning":          {"aws.ec2", parseCapacityBlock}, // as AWS's pages also write it
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

const (
	// AWS makes no announcement further off than these. SQS keeps a message for 14 days,
	// after EventBridge has tried to deliver it for one.
	maxAhead = time.Hour
	maxPast  = 30 * 24 * time.Hour

	// maxEventID is ample for the UUIDs that EventBridge makes, and small enough for
	// the record on the Node.
	maxEventID = 128

	// maxName is the longest name that Auto Scaling lets a group or a hook have.
	maxName = 255
)

// An object is a JSON object whose fields are read one after another. err is a *rejection: why
// the first field that cannot be used cannot. What is read from then on does not count.
type object struct {
	fields map[string]json.RawMessage
	err    error
}

// fail rejects the object, unless it is rejected already.
func (o *object) fail(err error) {
	if o.err == nil {
		o.err = err
	}
}

func (o *object) has(name string) bool {
	_, has := o.fields[name]
	return has
}

// text returns a field that has to be a string with something in it.
func (o *object) text(name string) string {
	raw, ok := o.fields[name]
	if !ok {
		o.fail(malformed(rejectField, "no %s", name))
		return ""
	}
	var text *string
	if err := json.Unmarshal(raw, &text); err != nil || text == nil {
		o.fail(malformed(rejectField, "%s is not a string", name))
		return ""
	}
	if *text == "" {
		o.fail(malformed(rejectField, "%s is empty", name))
	}
	return *text
}

// object returns a field that has to be an object.
func (o *object) object(name string) object {
	raw, ok := o.fields[name]
	if !ok {
		return object{err: malformed(rejectField, "no %s", name)}
	}
	return objectOf(raw, name)
}

// objectOf is that JSON, which has to be an object.
func objectOf(raw json.RawMessage, name string) (o object) {
	fields, err := parseObject(raw)
	if err != nil {
		o.fail(malformed(rejectField, "%s: %v", name, err))
	}
	o.fields = fields
	return o
}

// announced returns the field that says when AWS made the announcement.
func (o *object) announced(name string, received time.Time) time.Time {
	return o.time(name, received.Add(-maxPast), received.Add(maxAhead), time.RFC3339)
}

// time returns a field that has to be a time in one of the layouts, and plausible.
func (o *object) time(name string, from, to time.Time, layouts ...string) time.Time {
	text := o.text(name)
	for _, layout := range layouts {
		t, err := time.Parse(layout, text)
		switch {
		case err != nil:
		case t.Before(from) || t.After(to):
			o.fail(malformed(rejectTime, "%s %.64s is implausible, want %s to %s", name, text,
				from.UTC().Format(time.RFC3339), to.UTC().Format(time.RFC3339)))
			return time.Time{}
		default:
			return t.UTC()
		}
	}
	o.fail(malformed(rejectTime, "%s %.64q is not a time of the form %s", name, text, layouts[0]))
	return time.Time{}
}

// id returns a field that names an event or an action of a hook.
func (o *object) id(name string) string {
	id := o.text(name)
	if !validEventID(id) {
		o.fail(malformed(rejectField, "%s %.128q", name, id))
	}
	return id
}

// name returns the name of a group or of a hook. It is kept on the Node and given back to Auto
// Scaling: nothing in it must be invisible.
func (o *object) name(field string) string {
	name := o.text(field)
	if len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		o.fail(malformed(rejectField, "%s %.128q", field, name))
	}
	return name
}

// instance returns the instance that a detail names: an EC2 instance id, or whatever the last
// segment of a providerID can be. It is safe as a label's value and in a name.
func (o *object) instance(name string) string {
	id := o.text(name)
	if !validInstanceID(id) {
		o.fail(malformed(rejectInstanceID, "%s %.64q", name, id))
	}
	return id
}

// action returns what EC2 is about to do to the instance.
//
// An action that EC2 does not document counts as a termination: the message says that the
// instance is interrupted, whatever the word for it. Moving pods for nothing costs less than
// losing them.
func (o *object) action() string {
	switch action := o.text("instance-action"); action {
	case interruption.ActionTerminate, interruption.ActionStop, interruption.ActionHibernate:
		return action
	}
	return interruption.ActionTerminate
}

func validEventID(id string) bool { return len(id) <= maxEventID && printable(id) }

// printable reports whether the text is ASCII without spaces and control characters.
func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

func validInstanceID(id string) bool { return id != "" && len(validation.IsValidLabelValue(id)) == 0 }

// parseObject splits a JSON object into its fields. It is stricter than
// encoding/json: names are matched by their exact case, and no name can come twice. Two
// readers of such a message could understand two different instances.
// The decoder itself limits nesting.
func parseObject(data []byte) (fields map[string]json.RawMessage, err error) {
	ambiguous, err := strictjson.UnmarshalStrict(data, &fields)
	switch {
	case err != nil:
		return nil, fmt.Errorf("not a JSON object: %w", err)
	case fields == nil:
		return nil, errors.New("not a JSON object")
	case len(ambiguous) > 0:
		return nil, fmt.Errorf("%.128s", ambiguous[0].Error())
	}
	return fields, nil
}
